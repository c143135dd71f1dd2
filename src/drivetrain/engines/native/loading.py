"""From a folder of weights to a model in memory with our attention in it: which class, device and dtype."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from drivetrain.core.engine import ModelSpec, Progress, WeightsFormat
from drivetrain.core.errors import InvalidRequest, InvalidSetting, LoadFailed
from drivetrain.core.parameters import PARAMETERS
from drivetrain.core.sampling import Sampling
from drivetrain.engines.native import attention, fitness
from drivetrain.engines.native.cache import LayerShape
from drivetrain.engines.native.packing import pack_linear_layers
from drivetrain.engines.native.quiet import quiet_library

DEFAULT_CONTEXT = 2048
NO_LIMIT = 10_000_000
"""Tokenizers write «no limit» as 1e30; nothing above this is taken for a context length."""

NOT_HONOURED = ("num_beams", "stop_strings", "min_new_tokens", "penalty_alpha", "watermarking_config", "token_healing")


@dataclass(slots=True)
class Loaded:
    """A model that leaves its attention to `stage`. `structure` is its generation_config as it came."""

    model: Any
    tokenizer: Any
    stage: attention.Stage
    layers: dict[int, LayerShape]
    structure: Any
    context_length: int
    """Of the model, or what the setting says; memory may allow less."""
    eos_ids: frozenset[int]


def load(spec: ModelSpec, progress: Progress) -> Loaded:
    path = _safetensors_folder(spec, progress)
    progress("reading the configuration", None)
    _check_generation_config(path)
    with quiet_library():
        return _load(path, spec.options, progress)


def _load(path: Path, options: Mapping[str, Any], progress: Progress) -> Loaded:
    import torch
    import transformers as hf

    trust = bool(options.get("trust_remote_code", False))
    config = hf.AutoConfig.from_pretrained(path, trust_remote_code=trust, local_files_only=True)
    fitness.check_config(config)
    device = pick_device(str(options.get("device", "auto")))
    dtype = pick_dtype(str(options.get("dtype", "auto")), config, device)
    progress("loading the tokenizer", None)
    tokenizer = hf.AutoTokenizer.from_pretrained(path, trust_remote_code=trust, local_files_only=True)
    progress("loading the weights", None)
    model, problems = hf.AutoModelForCausalLM.from_pretrained(
        path,
        config=config,
        dtype=dtype,
        trust_remote_code=trust,
        use_safetensors=True,
        local_files_only=True,
        output_loading_info=True,
    )
    _refuse_holes(problems)
    fitness.check_class(model)
    progress(f"moving the weights to {device}", None)
    model = model.to(device).eval().requires_grad_(False)
    pack_linear_layers(model)
    attention.register()
    stage = attention.install(model)
    with torch.inference_mode():
        layers = fitness.probe(model, stage)
    limit = context_length(config, tokenizer, options.get("context_length"))
    tokenizer.model_max_length = NO_LIMIT  # what is too long is refused by us; the library would print a warning
    structure = model.generation_config if model.can_generate() else hf.GenerationConfig()
    return Loaded(
        model=model,
        tokenizer=tokenizer,
        stage=stage,
        layers=layers,
        structure=structure,
        context_length=limit,
        eos_ids=eos_ids(structure, config, tokenizer),
    )


def pick_device(wanted: str) -> Any:
    import torch

    has = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if wanted == "auto":
        return torch.device(next(name for name, there in has.items() if there))
    base, _, number = wanted.partition(":")
    if base not in has or (number and not (base == "cuda" and number.isdigit())):
        raise InvalidSetting(f"device is {wanted!r}; it must be auto, cpu, cuda, cuda:N or mps", param="device")
    if not has[base] or (number and int(number) >= torch.cuda.device_count()):
        raise InvalidSetting(f"device {wanted} is not there; use auto, or see `drivetrain doctor`", param="device")
    return torch.device(wanted)


def pick_dtype(wanted: str, config: Any, device: Any) -> Any:
    """`auto`: float32 on a CPU (few have native bfloat16), float16 on MPS, what the weights have on CUDA."""
    import torch

    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if wanted == "auto":
        if device.type == "cuda":
            return getattr(config, "dtype", None) or torch.bfloat16
        return torch.float16 if device.type == "mps" else torch.float32
    if wanted not in known:
        raise InvalidSetting(f"dtype is {wanted!r}; it must be auto, {', '.join(known)}", param="dtype")
    return known[wanted]


def context_length(config: Any, tokenizer: Any, setting: int | None) -> int:
    """What the config says, else a believable figure of the tokenizer, else the setting, else 2048."""
    known = None
    text = config.get_text_config()
    for name in ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length"):
        value = getattr(text, name, None)
        if isinstance(value, int) and 0 < value < NO_LIMIT:
            known = value
            break
    stated = getattr(tokenizer, "model_max_length", None)
    if known is None and isinstance(stated, int) and 0 < stated < NO_LIMIT:
        known = stated
    if setting is not None and known is not None and setting > known:
        raise InvalidSetting(f"context_length is {setting}; this model has {known}", param="context_length")
    return setting or known or DEFAULT_CONTEXT


def eos_ids(structure: Any, config: Any, tokenizer: Any) -> frozenset[int]:
    """Every id that the weights name as an end: generation_config, config and tokenizer."""
    found: set[Any] = {tokenizer.eos_token_id}
    for value in (structure.eos_token_id, getattr(config.get_text_config(), "eos_token_id", None)):
        found |= set(value) if isinstance(value, (list, tuple)) else {value}
    return frozenset(int(i) for i in found if i is not None and i >= 0)


def stated_sampling(structure: Any, honoured: frozenset[str]) -> dict[str, Any]:
    """The sampling that came with the weights, under our names. Only what was stated: no library default.

    Held to the same ranges as a request, so that a bad file is one error at load and not one a request.
    """
    stated: dict[str, Any] = {}
    for field in fields(Sampling):
        value = getattr(structure, field.name, None)
        if value is not None and field.name in honoured:
            stated[field.name] = _judged(field.name, field.name, _plain(value))
    if (length := getattr(structure, "max_new_tokens", None)) is not None:
        stated["max_tokens"] = _judged("max_tokens", "max_new_tokens", length)
    if getattr(structure, "do_sample", None) is False:
        stated["temperature"] = 0.0
    return stated


def not_honoured(structure: Any, honoured: frozenset[str]) -> tuple[str, ...]:
    """What generation_config.json asks for and this engine does not do, in words."""
    ours = tuple(field.name for field in fields(Sampling) if field.name not in honoured)
    asked: dict[str, Any] = {
        name: getattr(structure, name, None)
        for name in (*NOT_HONOURED, *ours, "forced_bos_token_id", "forced_eos_token_id")
    }
    return tuple(
        f"generation_config.json sets {name}, which is not honoured"
        for name, value in asked.items()
        if value not in (None, 1)
    )


def safetensors_made(spec: ModelSpec) -> Path | None:
    """The folder with the weights as we load them, if it is there already."""
    if spec.format is not WeightsFormat.GGUF:
        return spec.path
    return spec.derived.find("safetensors") if spec.derived is not None else None


def _judged(name: str, key: str, value: Any) -> Any:
    try:
        PARAMETERS[name].rule(key, value)
    except InvalidRequest as exc:
        raise LoadFailed(f"generation_config.json: {exc.message}; mend the file or remove it") from exc
    return value


def _plain(value: Any) -> Any:
    return tuple(_plain(item) for item in value) if isinstance(value, (list, tuple)) else value


def _safetensors_folder(spec: ModelSpec, progress: Progress) -> Path:
    if spec.format is not WeightsFormat.GGUF:
        return spec.path
    if spec.derived is None:
        raise LoadFailed("the native engine needs a place to keep what it makes of a GGUF file")
    from drivetrain.engines.native.gguf import convert

    return spec.derived.make("safetensors", lambda target: convert(spec.path, target, progress))


def _refuse_holes(problems: Mapping[str, Any]) -> None:
    """Weights that are not in the file would be random."""
    if missing := list(problems.get("missing_keys", ())):
        raise LoadFailed(f"{len(missing)} weights are missing from the files, {min(missing)} among them")
    if problems.get("mismatched_keys"):
        raise LoadFailed("the shapes of the weights do not fit the configuration")


def _check_generation_config(path: Path) -> None:
    """The library passes over a broken one in silence, and with it the model's end tokens."""
    try:
        stated = json.loads((path / "generation_config.json").read_text("utf-8"))
    except FileNotFoundError:
        return
    except (OSError, ValueError):
        stated = None
    if not isinstance(stated, dict):
        raise LoadFailed("generation_config.json is not readable JSON; pull or copy the model again, or remove it")

"""From a folder of weights to a model in memory: which class, which device, which dtype, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from drivetrain.core.engine import ModelSpec, Progress, WeightsFormat
from drivetrain.core.errors import InvalidRequest, InvalidSetting, LoadFailed
from drivetrain.core.parameters import PARAMETERS
from drivetrain.core.sampling import Sampling
from drivetrain.engines.transformers.quiet import quiet_library

DEFAULT_CONTEXT = 2048
NO_LIMIT = 10_000_000
"""Tokenizers write «no limit» as 1e30; nothing above this is taken for a context length."""


POOLINGS = ("mean", "cls", "last")

NOT_HONOURED = ("num_beams", "stop_strings", "min_new_tokens", "penalty_alpha", "watermarking_config", "token_healing")


class Kind(StrEnum):
    CAUSAL = "causal"
    SEQ2SEQ = "seq2seq"
    VISION = "vision"
    ENCODER = "encoder"


@dataclass(slots=True)
class Loaded:
    """A model ready to run. `structure` is its generation_config as it came; the model's own one is neutral."""

    model: Any
    tokenizer: Any
    processor: Any
    kind: Kind
    structure: Any
    context_length: int
    eos_ids: frozenset[int]
    pooling: str


def load(spec: ModelSpec, progress: Progress) -> Loaded:
    options = spec.options
    path = _safetensors_folder(spec, progress)
    progress("reading the configuration", None)
    _check_generation_config(path)
    with quiet_library():
        return _load(path, options, progress)


def _load(path: Path, options: Mapping[str, Any], progress: Progress) -> Loaded:
    import transformers as hf

    trust = bool(options.get("trust_remote_code", False))
    config = hf.AutoConfig.from_pretrained(path, trust_remote_code=trust, local_files_only=True)
    kind = kind_of(config)
    device = pick_device(str(options.get("device", "auto")))
    dtype = pick_dtype(str(options.get("dtype", "auto")), config, device)
    progress("loading the tokenizer", None)
    processor = _processor(path, trust) if kind is Kind.VISION else None
    tokenizer = processor.tokenizer if processor is not None else _tokenizer(path, trust)
    progress("loading the weights", None)
    model, problems = _model_class(kind).from_pretrained(
        path,
        config=config,
        dtype=dtype,
        trust_remote_code=trust,
        use_safetensors=True,
        local_files_only=True,
        output_loading_info=True,
    )
    _refuse_holes(problems, kind)
    progress(f"moving the weights to {device}", None)
    model = model.to(device).eval()
    limit = context_length(config, tokenizer, options.get("context_length"))
    tokenizer.model_max_length = NO_LIMIT  # what is too long is refused by us; the library would print a warning
    structure = model.generation_config if model.can_generate() else hf.GenerationConfig()
    if model.can_generate():
        model.generation_config = _neutral(structure)
    return Loaded(
        model=model,
        tokenizer=tokenizer,
        processor=processor,
        kind=kind,
        structure=structure,
        context_length=limit,
        eos_ids=eos_ids(structure, config, tokenizer),
        pooling=pooling_of(options.get("pooling"), path),
    )


def kind_of(config: Any) -> Kind:
    """By the architecture that the config names; by the library's tables where it names none."""
    from transformers.models.auto import modeling_auto as auto

    architecture = (getattr(config, "architectures", None) or [""])[0]
    model_type = config.model_type
    if model_type in auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES and "ForCausalLM" not in architecture:
        return Kind.VISION
    if config.is_encoder_decoder and model_type in auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES:
        return Kind.SEQ2SEQ
    causal = model_type in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or hasattr(config, "auto_map")
    if causal and ("CausalLM" in architecture or "LMHead" in architecture or not architecture):
        return Kind.CAUSAL
    if architecture.endswith(("Model", "ForMaskedLM")):
        return Kind.ENCODER
    raise LoadFailed(f"{architecture or model_type} is not a model that gives text or embeddings")


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


def stated_sampling(structure: Any) -> dict[str, Any]:
    """The sampling that came with the weights, under our names. Only what was stated: no library default.

    Held to the same ranges as a request, so that a bad file is one error at load and not one a request.
    """
    stated: dict[str, Any] = {}
    for field in fields(Sampling):
        if (value := getattr(structure, field.name, None)) is not None:
            stated[field.name] = _judged(field.name, field.name, _plain(value))
    if (length := getattr(structure, "max_new_tokens", None)) is not None:
        stated["max_tokens"] = _judged("max_tokens", "max_new_tokens", length)
    if getattr(structure, "do_sample", None) is False:
        stated["temperature"] = 0.0
    return stated


def not_honoured(structure: Any) -> tuple[str, ...]:
    """What generation_config.json asks for and this engine does not do, in words."""
    asked: dict[str, Any] = {name: getattr(structure, name, None) for name in NOT_HONOURED}
    return tuple(
        f"generation_config.json sets {name}, which is not honoured"
        for name, value in asked.items()
        if value not in (None, 1)
    )


def _judged(name: str, key: str, value: Any) -> Any:
    try:
        PARAMETERS[name].rule(key, value)
    except InvalidRequest as exc:
        raise LoadFailed(f"generation_config.json: {exc.message}; mend the file or remove it") from exc
    return value


def _plain(value: Any) -> Any:
    return tuple(_plain(item) for item in value) if isinstance(value, (list, tuple)) else value


def _neutral(structure: Any) -> Any:
    """Ids and cache kind only: all sampling is ours, and `generate()` fills in what its config does not say."""
    from transformers import GenerationConfig

    return GenerationConfig(
        bos_token_id=structure.bos_token_id,
        pad_token_id=structure.pad_token_id,
        decoder_start_token_id=structure.decoder_start_token_id,
        cache_implementation=structure.cache_implementation,
    )


def _safetensors_folder(spec: ModelSpec, progress: Progress) -> Path:
    if spec.format is not WeightsFormat.GGUF:
        return spec.path
    if spec.derived is None:
        raise LoadFailed("the transformers engine needs a place to keep what it makes of a GGUF file")
    from drivetrain.engines.transformers.gguf import convert

    return spec.derived.make("safetensors", lambda target: convert(spec.path, target, progress))


def _model_class(kind: Kind) -> Any:
    import transformers as hf

    return {
        Kind.CAUSAL: hf.AutoModelForCausalLM,
        Kind.SEQ2SEQ: hf.AutoModelForSeq2SeqLM,
        Kind.VISION: hf.AutoModelForImageTextToText,
        Kind.ENCODER: hf.AutoModel,
    }[kind]


def _tokenizer(path: Path, trust: bool) -> Any:
    import transformers as hf

    return hf.AutoTokenizer.from_pretrained(path, trust_remote_code=trust, local_files_only=True)


def _processor(path: Path, trust: bool) -> Any:
    import transformers as hf

    try:
        return hf.AutoProcessor.from_pretrained(path, trust_remote_code=trust, local_files_only=True)
    except (OSError, ValueError) as exc:
        raise LoadFailed(
            "the model sees images, but its processor files are missing or broken; pull or copy the model again"
        ) from exc


def _refuse_holes(problems: Mapping[str, Any], kind: Kind) -> None:
    """Weights that are not in the file would be random. (An encoder's unused pooler is no loss.)"""
    missing = [name for name in problems.get("missing_keys", ()) if kind is not Kind.ENCODER or "pooler" not in name]
    if missing:
        raise LoadFailed(f"{len(missing)} weights are missing from the files, {min(missing)} among them")
    if problems.get("mismatched_keys"):
        raise LoadFailed("the shapes of the weights do not fit the configuration")


def pooling_of(setting: Any, path: Path) -> str:
    """How hidden states become one vector: the setting, else what the folder says, else the mean."""
    if setting is not None and setting not in POOLINGS:
        raise InvalidSetting(f"pooling is {setting!r}; it must be {', '.join(POOLINGS)}", param="pooling")
    return setting or _stored_pooling(path) or "mean"


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


def _stored_pooling(path: Path) -> str | None:
    """What a sentence-transformers folder says of its pooling."""
    try:
        stated = json.loads((path / "1_Pooling" / "config.json").read_text())
    except (OSError, ValueError):
        return None
    names = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean", "pooling_mode_lasttoken": "last"}
    return next((name for key, name in names.items() if stated.get(key)), None)

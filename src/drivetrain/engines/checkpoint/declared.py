"""What the files of a checkpoint state: context, ends, sampling; and what of it is refused or not honoured."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from drivetrain.core.errors import InvalidRequest, LoadFailed
from drivetrain.core.parameters import PARAMETERS
from drivetrain.core.sampling import Sampling
from drivetrain.engines.base.settings import within_model

DEFAULT_CONTEXT = 2048
NO_LIMIT = 10_000_000
"""Tokenizers write «no limit» as 1e30; nothing above this is taken for a context length."""

NOT_HONOURED = ("num_beams", "stop_strings", "min_new_tokens", "penalty_alpha", "watermarking_config", "token_healing")
SAMPLING = tuple(field.name for field in fields(Sampling))


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
    return within_model(setting, known) or known or DEFAULT_CONTEXT


def eos_ids(structure: Any, config: Any, tokenizer: Any) -> frozenset[int]:
    """Every id that the weights name as an end: generation_config, config and tokenizer."""
    found: set[Any] = {tokenizer.eos_token_id}
    for value in (structure.eos_token_id, getattr(config.get_text_config(), "eos_token_id", None)):
        found |= set(value) if isinstance(value, (list, tuple)) else {value}
    return frozenset(int(i) for i in found if i is not None and i >= 0)


def stated_sampling(structure: Any, honoured: Collection[str] = SAMPLING) -> dict[str, Any]:
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


def not_honoured(structure: Any, more: Iterable[str] = ()) -> tuple[str, ...]:
    """What generation_config.json asks for and is not done, in words; `more` are names that an engine adds."""
    asked: dict[str, Any] = {name: getattr(structure, name, None) for name in (*NOT_HONOURED, *more)}
    return tuple(
        f"generation_config.json sets {name}, which is not honoured"
        for name, value in asked.items()
        if value not in (None, 1)
    )


def check_generation_config(path: Path) -> None:
    """The library passes over a broken one in silence, and with it the model's end tokens."""
    try:
        stated = json.loads((path / "generation_config.json").read_text("utf-8"))
    except FileNotFoundError:
        return
    except (OSError, ValueError):
        stated = None
    if not isinstance(stated, dict):
        raise LoadFailed("generation_config.json is not readable JSON; pull or copy the model again, or remove it")


def refuse_holes(problems: Mapping[str, Any], *, but: str | None = None) -> None:
    """Weights that are not in the file, or in another shape, would be random. Those named like `but` may be missing.

    For this `from_pretrained` is told to ignore shapes: its own error names no weight.
    """
    missing = [name for name in problems.get("missing_keys", ()) if but is None or but not in name]
    if missing:
        raise LoadFailed(f"{len(missing)} weights are missing from the files, {min(missing)} among them")
    if mismatched := sorted(problems.get("mismatched_keys", ())):
        name, here, wanted = mismatched[0]
        raise LoadFailed(
            f"the weights do not fit the configuration: {name} is {_shape(here)} and should be {_shape(wanted)}"
            f" (shapes that differ: {len(mismatched)}); pull or copy the model again"
        )


def _shape(sizes: Iterable[int]) -> str:
    return "×".join(map(str, sizes))


def _judged(name: str, key: str, value: Any) -> Any:
    try:
        PARAMETERS[name].kind.judge(key, value)
    except InvalidRequest as exc:
        raise LoadFailed(f"generation_config.json: {exc.message}; mend the file or remove it") from exc
    return value


def _plain(value: Any) -> Any:
    return tuple(_plain(item) for item in value) if isinstance(value, (list, tuple)) else value

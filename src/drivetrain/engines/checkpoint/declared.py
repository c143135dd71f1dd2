"""What a checkpoint's files declare: context length, end tokens, sampling; and what of it is refused or ignored."""

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
"""Tokenizers write 1e30 for «no limit»; nothing above this counts as a context length."""

NOT_HONOURED = ("num_beams", "stop_strings", "min_new_tokens", "penalty_alpha", "watermarking_config", "token_healing")
SAMPLING = tuple(field.name for field in fields(Sampling))


def context_length(config: Any, tokenizer: Any, setting: int | None) -> int:
    """From the config, else a plausible value of the tokenizer's, else the setting, else 2048."""
    known = None
    text = config.get_text_config()
    for name in ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length"):
        value = getattr(text, name, None)
        if isinstance(value, int) and 0 < value < NO_LIMIT:
            known = value - (_unused_positions(text) if name == "max_position_embeddings" else 0)
            break
    longest = getattr(tokenizer, "model_max_length", None)
    if known is None and isinstance(longest, int) and 0 < longest < NO_LIMIT:
        known = longest
    return within_model(setting, known) or known or DEFAULT_CONTEXT


BEHIND_PADDING = frozenset({
    "camembert", "data2vec-text", "longformer", "mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta",
    "xlm-roberta-xl", "xmod",
})  # fmt: skip
"""Kinds of models whose positions begin behind the padding's: a text that used them all would be out of bounds."""


def _unused_positions(text: Any) -> int:
    if getattr(text, "model_type", None) not in BEHIND_PADDING:
        return 0
    padding = getattr(text, "pad_token_id", None)
    return 1 + (padding if isinstance(padding, int) else 1)


def eos_ids(structure: Any, config: Any, tokenizer: Any) -> frozenset[int]:
    """Every end token that generation_config, config or tokenizer names."""
    found: set[Any] = {tokenizer.eos_token_id}
    for value in (structure.eos_token_id, getattr(config.get_text_config(), "eos_token_id", None)):
        found |= set(value) if isinstance(value, (list, tuple)) else {value}
    return frozenset(int(i) for i in found if i is not None and i >= 0)


def stated_sampling(structure: Any, honoured: Collection[str] = SAMPLING) -> dict[str, Any]:
    """The sampling that the files set, under our names and without the library's defaults.

    Checked against a request's ranges, so that a bad file is one error at load instead of one per request.
    """
    sampling: dict[str, Any] = {}
    for field in fields(Sampling):
        value = getattr(structure, field.name, None)
        if value is not None and field.name in honoured:
            sampling[field.name] = _checked(field.name, field.name, _plain(value))
    if (length := getattr(structure, "max_new_tokens", None)) is not None:
        sampling["max_tokens"] = _checked("max_tokens", "max_new_tokens", length)
    if getattr(structure, "do_sample", None) is False:
        sampling["temperature"] = 0.0
    return sampling


def not_honoured(structure: Any, more: Iterable[str] = ()) -> tuple[str, ...]:
    """A note for each field of generation_config.json that is not honoured; `more` are an engine's own names."""
    values: dict[str, Any] = {name: getattr(structure, name, None) for name in (*NOT_HONOURED, *more)}
    return tuple(
        f"generation_config.json sets {name}, which is not honoured"
        for name, value in values.items()
        if value not in (None, 1)
    )


def check_generation_config(path: Path) -> None:
    """The library silently ignores a broken one, and with it the model's end tokens."""
    try:
        content = json.loads((path / "generation_config.json").read_text("utf-8"))
    except FileNotFoundError:
        return
    except (OSError, ValueError):
        content = None
    if not isinstance(content, dict):
        raise LoadFailed("generation_config.json is not readable JSON; pull or copy the model again, or remove it")


def refuse_holes(problems: Mapping[str, Any], *, but: str | None = None) -> None:
    """Weights that are missing or of another shape would be random. Those with `but` in their names may be missing.

    `from_pretrained` is told to ignore shapes for this, because its own error names no weight.
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


def _checked(name: str, key: str, value: Any) -> Any:
    try:
        PARAMETERS[name].kind.judge(key, value)
    except InvalidRequest as exc:
        raise LoadFailed(f"generation_config.json: {exc.message}; mend the file or remove it") from exc
    return value


def _plain(value: Any) -> Any:
    return tuple(_plain(item) for item in value) if isinstance(value, (list, tuple)) else value

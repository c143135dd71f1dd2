"""The models that this engine does not run: how that is said, and what of it the configuration tells. No torch here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from drivetrain.core.errors import UnfitEngine
from drivetrain.engines.checkpoint.kinds import IN_WORDS, Kind, StatedConfig, kind_of, stated_kind
from drivetrain.engines.native.classes import known_reason

ADVICE = "use `--engine transformers` for it"

STATE_SPACE = ("mamba", "linear_attention", "conv", "recurrent", "gated_delta")
LARGEST_POSITION = ("longrope", "dynamic")


def unfit(why: str) -> UnfitEngine:
    return UnfitEngine(f"the native engine cannot run this model: {why}; {ADVICE}", why=why)


def stated_reason(config: Mapping[str, Any]) -> str | None:
    """Why not, as far as the JSON of a configuration tells. The library may know more of what it leaves out."""
    stated = StatedConfig(config)
    return _kind_reason(stated_kind(config)) or next(_reasons(stated.get_text_config()), None) or known_reason(stated)


def check_config(config: Any) -> None:
    """Raise `UnfitEngine` for what a config of the library tells before any weight is read."""
    if why := _kind_reason(kind_of(config)) or next(_reasons(config.get_text_config()), None):
        raise unfit(why)


def _kind_reason(kind: Kind) -> str | None:
    return None if kind is Kind.CAUSAL else IN_WORDS[kind]


def _reasons(text: Any) -> Iterator[str]:
    """What the configuration of a causal model says that this engine does not do."""
    stated = getattr(text, "layer_types", None)
    kinds = {str(kind) for kind in stated} if isinstance(stated, (list, tuple)) else set()
    if odd := sorted(kind for kind in kinds if any(word in kind for word in STATE_SPACE)):
        yield f"it has layers of the kind {odd[0]}, which keep a state that is no list of keys"
    if getattr(text, "attention_chunk_size", None) and ("chunked_attention" in kinds or not kinds):
        yield "it attends in chunks"
    if getattr(text, "kv_lora_rank", None):
        yield "it keeps compressed keys and values (MLA)"
    if getattr(text, "num_kv_shared_layers", None):
        yield "some of its layers share their keys and values"
    for rope in _ropes(text):
        if rope in LARGEST_POSITION:
            yield f"its positions are scaled by the longest text of a batch ({rope})"


def _ropes(text: Any) -> Iterator[str]:
    """The kinds of rotary positions, of the model or of each kind of its layers."""
    for name in ("rope_parameters", "rope_scaling"):
        stated = getattr(text, name, None)
        if isinstance(stated, dict):
            for part in (stated, *(value for value in stated.values() if isinstance(value, dict))):
                yield str(part.get("rope_type", part.get("type", "")))

"""The settings of this engine, checked against the model before anything heavy starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drivetrain.core.errors import InvalidSetting
from drivetrain.engines.llamacpp.gguf import as_text
from drivetrain.engines.llamacpp.images import mmproj

SETTINGS = frozenset({"context_length", "slots", "threads", "gpu_layers", "mmproj", "pooling"})
"""The settings that this engine honours; any other one that was set is refused at load."""

POOLINGS = ("mean", "cls", "last")
DEFAULT_SLOTS = 4
MAX_SLOTS = 256
DEFAULT_CONTEXT = 8192
"""Each slot's share of the cache is laid out at load, so a model's full length is not taken unasked."""

_SAMPLING = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
_STATED_POOLING = {1: "mean", 2: "cls", 3: "last"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    slots: int
    context_length: int
    threads: int | None
    gpu_layers: int | None
    pooling: str
    vision: mmproj.VisionPart


def read_options(options: Mapping[str, Any], metadata: Mapping[str, Any], model: Path) -> Options:
    """Raises `InvalidSetting`, naming the one at fault; `LoadFailed` for a broken file beside the model."""
    return Options(
        slots=_whole(options, "slots", 1, MAX_SLOTS) or DEFAULT_SLOTS,
        context_length=_context_length(_whole(options, "context_length", 1, 2**31 - 1), metadata),
        threads=_whole(options, "threads", 1, 4096),
        gpu_layers=_whole(options, "gpu_layers", 0, 2**16),
        pooling=_pooling(options.get("pooling"), metadata),
        vision=mmproj.find(options.get("mmproj"), model, of_architecture(metadata, "embedding_length")),
    )


def architecture(metadata: Mapping[str, Any]) -> str:
    return as_text(metadata.get("general.architecture")) or "unknown"


def of_architecture(metadata: Mapping[str, Any], key: str) -> Any:
    return metadata.get(f"{architecture(metadata)}.{key}")


def stated_sampling(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling that came with the weights, under our names."""
    found = {ours: metadata.get(f"general.sampling.{theirs}") for theirs, ours in _SAMPLING.items()}
    return {name: value for name, value in found.items() if isinstance(value, (int, float))}


def _context_length(setting: int | None, metadata: Mapping[str, Any]) -> int:
    known = of_architecture(metadata, "context_length")
    trained = known if isinstance(known, int) and known > 0 else None
    if setting is not None and trained is not None and setting > trained:
        raise InvalidSetting(f"context_length is {setting}; this model has {trained}", param="context_length")
    return setting or min(trained or DEFAULT_CONTEXT, DEFAULT_CONTEXT)


def _pooling(setting: Any, metadata: Mapping[str, Any]) -> str:
    if setting is not None and setting not in POOLINGS:
        raise InvalidSetting(f"pooling is {setting!r}; it must be {', '.join(POOLINGS)}", param="pooling")
    return setting or _STATED_POOLING.get(of_architecture(metadata, "pooling_type"), "mean")


def _whole(options: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    value = options.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidSetting(f"{name} is {value!r}; it must be a whole number from {low} to {high}", param=name)
    return value

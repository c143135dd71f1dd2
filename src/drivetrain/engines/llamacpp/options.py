"""How a model is to be run: the settings and what its metadata says, before anything heavy starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drivetrain.engines.base.settings import Pooling, within_model
from drivetrain.engines.llamacpp.gguf import as_text
from drivetrain.engines.llamacpp.images import mmproj
from drivetrain.engines.llamacpp.settings import LlamaCppSettings
from drivetrain.telemetry.cores import fewer_than, physical_cores

DEFAULT_CONTEXT = 8192
"""Each slot's share of the cache is laid out at load, so a model's full length is not taken unasked."""

_SAMPLING = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
_STATED_POOLING = {1: Pooling.MEAN, 2: Pooling.CLS, 3: Pooling.LAST}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    slots: int
    context_length: int
    threads: int | None
    yield_cores: bool
    gpu_layers: int | None
    pooling: Pooling
    vision: mmproj.VisionPart


def read_options(options: Mapping[str, Any], metadata: Mapping[str, Any], model: Path) -> Options:
    """Raises `InvalidSetting`, naming the one at fault; `LoadFailed` for a broken file beside the model."""
    settings = LlamaCppSettings.of(options)
    return Options(
        slots=settings.slots,
        context_length=_context_length(settings.context_length, metadata),
        threads=settings.threads or fewer_than(physical_cores()),  # which llama.cpp takes by itself
        yield_cores=settings.yield_cores,
        gpu_layers=settings.gpu_layers,
        pooling=settings.pooling or _STATED_POOLING.get(of_architecture(metadata, "pooling_type"), Pooling.MEAN),
        vision=mmproj.find(settings.mmproj, model, of_architecture(metadata, "embedding_length")),
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
    return within_model(setting, trained) or min(trained or DEFAULT_CONTEXT, DEFAULT_CONTEXT)

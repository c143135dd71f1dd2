"""The settings of engines: how one reads its own, and the declarations of those that several engines have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from drivetrain.core.errors import InvalidSetting
from drivetrain.core.kinds import Boolean, Integer, Matching, Number, OneOf
from drivetrain.core.settings import Setting, declarations


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Those of one engine, its defaults filled in. Each engine declares a class of its own."""

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """From `ModelSpec.options`; names of others are passed over. Raises `InvalidSetting`."""
        known = declarations(cls).items()
        return cls(**{name: one.judge(name, options[name]) for name, one in known if options.get(name) is not None})


def within_model(context_length: int | None, known: int | None) -> int | None:
    """The setting, unless it is longer than the model's, where that is known."""
    if context_length is not None and known is not None and context_length > known:
        raise InvalidSetting(f"context_length is {context_length}; this model has {known}", param="context_length")
    return context_length


class Dtype(StrEnum):
    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Pooling(StrEnum):
    MEAN = "mean"
    CLS = "cls"
    LAST = "last"


CONTEXT_LENGTH = Setting(Integer(1), "context length, if smaller than the model's")
DEVICE = Setting(
    Matching(r"auto|cpu|mps|cuda(:[0-9]{1,3})?", "auto, cpu, cuda, cuda:N or mps"), "where to compute", default="auto"
)
DTYPE = Setting(OneOf(Dtype), "number format of the weights", default=Dtype.AUTO)
TRUST_REMOTE_CODE = Setting(Boolean(), "run code that comes with the model (dangerous)", default=False)
POOLING = Setting(OneOf(Pooling), "pooling for embeddings", otherwise="what the model states, else mean")
MAX_BATCH = Setting(Integer(1, 4096), "requests computed together", default=256)
KV_CACHE_GB = Setting(
    Number(0, 1e9, above=True), "GB of memory for keys and values", otherwise="a share of what is free"
)
YIELD_CORES = Setting(Boolean(), "compute with fewer threads while other processes keep the cores busy", default=True)
PREFIX_CACHE = Setting(Boolean(), "reuse the cached beginnings of earlier prompts", default=True)

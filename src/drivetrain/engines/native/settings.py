"""The settings that this engine honours."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from drivetrain.core.kinds import Boolean, OneOf
from drivetrain.core.settings import Setting, setting
from drivetrain.engines.base.settings import KV_CACHE_GB, MAX_BATCH, PREFIX_CACHE
from drivetrain.engines.checkpoint.settings import CheckpointSettings


class Quantize(StrEnum):
    NONE = "none"
    INT8 = "int8"


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeSettings(CheckpointSettings):
    quantize: Quantize = setting(Setting(OneOf(Quantize), "int8 for 8-bit weights on a CPU", default=Quantize.NONE))
    compile: bool = setting(Setting(Boolean(), "compile the steps on a CPU; needs a C++ compiler", default=False))
    max_batch: int = setting(MAX_BATCH)
    kv_cache_gb: float | None = setting(KV_CACHE_GB)
    prefix_cache: bool = setting(PREFIX_CACHE)

"""The settings that this engine honours."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from drivetrain.core.kinds import OneOf
from drivetrain.core.settings import Setting, setting
from drivetrain.engines.base.settings import KV_CACHE_GB, MAX_BATCH, PREFIX_CACHE
from drivetrain.engines.checkpoint.settings import CheckpointSettings


class Quantize(StrEnum):
    NONE = "none"
    INT8 = "int8"


class Compile(StrEnum):
    AUTO = "auto"
    ON = "on"
    OFF = "off"


class Speculative(StrEnum):
    NONE = "none"
    NGRAM = "ngram"


@dataclass(frozen=True, slots=True)
class _Switch(OneOf):
    """True and false, as they were once written, mean on and off."""

    def judge(self, name: str, value: Any) -> StrEnum:
        old = {"true": "on", "false": "off"}
        return OneOf.judge(self, name, old.get(str(value).lower(), value) if isinstance(value, (bool, str)) else value)


COMPILE = "auto compiles the steps on a CPU with a C++ compiler, behind the ready engine; on is ready when it is done"


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeSettings(CheckpointSettings):
    quantize: Quantize = setting(Setting(OneOf(Quantize), "int8 for 8-bit weights on a CPU", default=Quantize.NONE))
    compile: Compile = setting(Setting(_Switch(Compile), COMPILE, default=Compile.AUTO))
    max_batch: int = setting(MAX_BATCH)
    kv_cache_gb: float | None = setting(KV_CACHE_GB)
    prefix_cache: bool = setting(PREFIX_CACHE)
    speculative: Speculative = setting(
        Setting(OneOf(Speculative), "ngram for answers that repeat what was said", default=Speculative.NONE)
    )

"""The settings of an engine that loads a folder with the transformers library."""

from __future__ import annotations

from dataclasses import dataclass

from drivetrain.core.settings import setting
from drivetrain.engines.base.settings import (
    CONTEXT_LENGTH,
    DEVICE,
    DTYPE,
    POOLING,
    TRUST_REMOTE_CODE,
    YIELD_CORES,
    Dtype,
    EngineSettings,
    Pooling,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings(EngineSettings):
    device: str = setting(DEVICE)
    dtype: Dtype = setting(DTYPE)
    trust_remote_code: bool = setting(TRUST_REMOTE_CODE)
    context_length: int | None = setting(CONTEXT_LENGTH)
    pooling: Pooling | None = setting(POOLING)
    yield_cores: bool = setting(YIELD_CORES)

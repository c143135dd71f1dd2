"""The settings that this engine honours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drivetrain.core.kinds import Table
from drivetrain.core.settings import Setting, setting
from drivetrain.engines.base.settings import (
    CONTEXT_LENGTH,
    DTYPE,
    KV_CACHE_GB,
    MAX_BATCH,
    PREFIX_CACHE,
    TRUST_REMOTE_CODE,
    Dtype,
    EngineSettings,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings(EngineSettings):
    dtype: Dtype = setting(DTYPE)
    trust_remote_code: bool = setting(TRUST_REMOTE_CODE)
    context_length: int | None = setting(CONTEXT_LENGTH)
    max_batch: int = setting(MAX_BATCH)
    kv_cache_gb: float | None = setting(KV_CACHE_GB)
    prefix_cache: bool = setting(PREFIX_CACHE)
    vllm_args: Mapping[str, Any] | None = setting(
        Setting(Table(), "more engine arguments for vLLM, by its names for them")
    )

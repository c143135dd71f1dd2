"""The settings that this engine honours."""

from __future__ import annotations

from dataclasses import dataclass

from drivetrain.core.kinds import Integer, String
from drivetrain.core.settings import Setting, setting
from drivetrain.engines.base.settings import CONTEXT_LENGTH, POOLING, YIELD_CORES, EngineSettings, Pooling


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCppSettings(EngineSettings):
    context_length: int | None = setting(CONTEXT_LENGTH)
    pooling: Pooling | None = setting(POOLING)
    slots: int = setting(Setting(Integer(1, 256), "requests in one batch, each with its own context", default=4))
    threads: int | None = setting(
        Setting(Integer(1, 4096), "CPU threads", otherwise="llama.cpp's choice, within a quota")
    )
    yield_cores: bool = setting(YIELD_CORES)
    gpu_layers: int | None = setting(
        Setting(Integer(0, 2**16), "layers to put on the accelerator", otherwise="as many as fit")
    )
    mmproj: str | None = setting(
        Setting(String(non_empty=True), "the GGUF file with the vision part", otherwise="the one beside the model")
    )

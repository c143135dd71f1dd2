"""The settings that this engine honours."""

from __future__ import annotations

from dataclasses import dataclass

from drivetrain.core.kinds import Integer, String
from drivetrain.core.settings import Setting, setting
from drivetrain.engines.base.settings import CONTEXT_LENGTH, POOLING, EngineSettings, Pooling

SLOTS = Setting(Integer(1, 256), "requests in one batch, each with its own context", default=4)
THREADS = Setting(Integer(1, 4096), "CPU threads", otherwise="llama.cpp's choice")
GPU_LAYERS = Setting(Integer(0, 2**16), "layers to put on the accelerator", otherwise="as many as fit")
MMPROJ = Setting(String(non_empty=True), "the GGUF file with the vision part", otherwise="the one beside the model")


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCppSettings(EngineSettings):
    context_length: int | None = setting(CONTEXT_LENGTH)
    pooling: Pooling | None = setting(POOLING)
    slots: int = setting(SLOTS)
    threads: int | None = setting(THREADS)
    gpu_layers: int | None = setting(GPU_LAYERS)
    mmproj: str | None = setting(MMPROJ)

"""vLLM, in this process and those that it starts."""

from __future__ import annotations

from drivetrain.core.settings import declarations
from drivetrain.engines.base.kind import EngineKind, EntryPoints
from drivetrain.engines.vllm.settings import VllmSettings


def enter() -> EntryPoints:
    from drivetrain.engines.vllm.capabilities import stated_capabilities
    from drivetrain.engines.vllm.describe import of_files
    from drivetrain.engines.vllm.engine import VllmEngine

    return EntryPoints(make=VllmEngine, describe=of_files, stated_capabilities=stated_capabilities)


KIND = EngineKind(name="vllm", settings=declarations(VllmSettings), needs=("vllm",), enter=enter)

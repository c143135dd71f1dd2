"""llama.cpp, in a process of its own."""

from __future__ import annotations

from drivetrain.core.settings import declarations
from drivetrain.engines.base.kind import EngineKind, EntryPoints
from drivetrain.engines.llamacpp.settings import LlamaCppSettings


def enter() -> EntryPoints:
    from drivetrain.engines.llamacpp.describe import of_file
    from drivetrain.engines.llamacpp.engine import LlamaCppEngine
    from drivetrain.engines.llamacpp.widening import weights_to_run

    return EntryPoints(make=LlamaCppEngine, describe=of_file, prepare=weights_to_run)


KIND = EngineKind(name="llamacpp", settings=declarations(LlamaCppSettings), needs=("xllamacpp",), enter=enter)

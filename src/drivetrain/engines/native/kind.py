"""Our own loop over the classes of transformers."""

from __future__ import annotations

from drivetrain.core.settings import declarations
from drivetrain.engines.base.kind import EngineKind, EntryPoints
from drivetrain.engines.native.settings import NativeSettings


def enter() -> EntryPoints:
    from drivetrain.engines.native.capabilities import stated_capabilities
    from drivetrain.engines.native.describe import of_files
    from drivetrain.engines.native.engine import NativeEngine

    return EntryPoints(make=NativeEngine, describe=of_files, stated_capabilities=stated_capabilities)


KIND = EngineKind(name="native", settings=declarations(NativeSettings), needs=("torch", "transformers"), enter=enter)

"""The transformers library, one request at a time."""

from __future__ import annotations

from drivetrain.core.settings import declarations
from drivetrain.engines.base.kind import EngineKind, EntryPoints
from drivetrain.engines.checkpoint.settings import CheckpointSettings


def enter() -> EntryPoints:
    from drivetrain.engines.transformers.describe import of_files, stated_capabilities
    from drivetrain.engines.transformers.engine import TransformersEngine

    return EntryPoints(make=TransformersEngine, describe=of_files, stated_capabilities=stated_capabilities)


KIND = EngineKind(
    name="transformers", settings=declarations(CheckpointSettings), needs=("torch", "transformers"), enter=enter
)

"""Models that other servers run."""

from __future__ import annotations

from drivetrain.core.settings import declarations
from drivetrain.engines.base.kind import EngineKind, EntryPoints
from drivetrain.engines.remote.settings import RemoteSettings


def enter() -> EntryPoints:
    from drivetrain.engines.remote.engine import RemoteEngine

    return EntryPoints(make=RemoteEngine)


KIND = EngineKind(name="remote", settings=declarations(RemoteSettings), enter=enter)

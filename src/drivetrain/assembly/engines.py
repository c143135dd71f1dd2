"""The engines that there are, and the settings that they give a worker. The only place that names concrete ones.

Flags are made from it, so nothing here imports an engine's code.
"""

from __future__ import annotations

from drivetrain.core.errors import InvalidSetting
from drivetrain.engines.base.kind import EngineKind, EntryPoints
from drivetrain.engines.llamacpp.kind import KIND as LLAMACPP
from drivetrain.engines.native.kind import KIND as NATIVE
from drivetrain.engines.remote.kind import KIND as REMOTE
from drivetrain.engines.transformers.kind import KIND as TRANSFORMERS
from drivetrain.engines.vllm.kind import KIND as VLLM
from drivetrain.worker.settings import SettingsTable


def _enter_fake() -> EntryPoints:
    from drivetrain.engines.fake import FakeEngine

    return EntryPoints(make=FakeEngine)


FAKE = EngineKind(name="fake", settings={}, enter=_enter_fake)
ENGINES = {kind.name: kind for kind in (LLAMACPP, NATIVE, TRANSFORMERS, VLLM, REMOTE, FAKE)}
SETTINGS = SettingsTable({name: kind.settings for name, kind in ENGINES.items()})


def named(name: str) -> EngineKind:
    if name not in ENGINES:
        known = ", ".join(["auto", *ENGINES])
        raise InvalidSetting(f"engine is {name!r}; it must be one of {known}", param="engine")
    return ENGINES[name]

"""The settings that this engine honours."""

from __future__ import annotations

from dataclasses import dataclass

from drivetrain.core.kinds import Number
from drivetrain.core.settings import Setting, setting
from drivetrain.engines.base.settings import CONTEXT_LENGTH, EngineSettings

_SECONDS = Number(0.001, 1e9)
CONNECT_TIMEOUT_S = Setting(_SECONDS, "seconds to wait for a connection to the upstream", default=10.0)
FIRST_TIMEOUT_S = Setting(_SECONDS, "seconds to wait for the upstream to begin an answer", default=600.0)
SILENCE_TIMEOUT_S = Setting(_SECONDS, "seconds that the upstream may pause in mid-answer", default=120.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSettings(EngineSettings):
    context_length: int | None = setting(CONTEXT_LENGTH)
    connect_timeout_s: float = setting(CONNECT_TIMEOUT_S)
    first_timeout_s: float = setting(FIRST_TIMEOUT_S)
    silence_timeout_s: float = setting(SILENCE_TIMEOUT_S)

"""What every endpoint is handed: the models, the settings and what was measured. No globals."""

from __future__ import annotations

from dataclasses import dataclass, field

from drivetrain.server.gauges import Gauges
from drivetrain.server.models import Models
from drivetrain.server.settings import ServerSettings


@dataclass(frozen=True, slots=True)
class Context:
    models: Models
    settings: ServerSettings
    gauges: Gauges = field(default_factory=Gauges)

"""What every endpoint is handed: the models, the settings and what was measured. No globals."""

from __future__ import annotations

from dataclasses import dataclass, field

from drivetrain.server.counts import Counts
from drivetrain.server.models import Models
from drivetrain.server.rate import Rate
from drivetrain.server.settings import ServerSettings
from drivetrain.telemetry.tracing import NoTracer, Tracer


@dataclass(frozen=True, slots=True)
class Context:
    models: Models
    settings: ServerSettings
    counts: Counts = field(default_factory=Counts)
    rate: Rate = field(default_factory=Rate)
    """Of tokens, for whoever looks at `/status`."""
    tracer: Tracer = field(default_factory=NoTracer)
    """For what no worker hears of; each worker has it too."""

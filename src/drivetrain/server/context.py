"""What every endpoint is handed: the models, the settings and what was measured. No globals."""

from __future__ import annotations

from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field

from drivetrain.server.counts import Counts
from drivetrain.server.models import Models
from drivetrain.server.rate import Rate
from drivetrain.server.settings import ServerSettings
from drivetrain.telemetry.tracing import GenAiTracer


@dataclass(frozen=True, slots=True)
class Context:
    models: Models
    settings: ServerSettings
    counts: Counts = field(default_factory=Counts)
    rate: Rate = field(default_factory=Rate)
    """Of tokens, for whoever looks at `/status`."""
    parser: Executor = field(default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="drivetrain-parse"))
    """For large bodies. One thread, so that only one of them at a time is more than its bytes."""
    tracer: GenAiTracer | None = None
    """For what no worker hears of; each worker has it too."""

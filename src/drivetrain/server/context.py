"""What every endpoint gets: the models, the settings and the counters. No globals."""

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
    """Tokens per second, for `/status`."""
    parser: Executor = field(default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="drivetrain-parse"))
    """For large bodies. One thread, so that only one body at a time takes more memory than its bytes."""
    tracer: GenAiTracer | None = None
    """For requests that never reach a worker; each worker has it too."""

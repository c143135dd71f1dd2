"""Where the processes of a deployment send their log and their traces, as plain values like the rest of a plan."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from drivetrain.telemetry.logs import configure
from drivetrain.telemetry.tracing import GenAiTracer
from drivetrain.telemetry.wanted import wanted_tracer


@dataclass(frozen=True, slots=True, kw_only=True)
class Observability:
    """Without a `log_format` nothing is logged. Without an `otlp_endpoint`, the nodes' environment may name one."""

    log_format: str = ""
    log_level: str = "info"
    otlp_endpoint: str | None = None
    trace_content: bool = False
    trace_sample: float | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """Those that are not the default, for the application's arguments."""
        return {name: value for name, value in asdict(self).items() if value != getattr(Observability(), name)}


@contextlib.contextmanager
def observing(arguments: Mapping[str, Any]) -> Iterator[GenAiTracer | None]:
    """While entered, this process logs and traces as `Observability.arguments` say; its tracer, if it traces."""
    chosen = Observability(**arguments)
    if chosen.log_format:
        configure(chosen.log_format, chosen.log_level)
    with wanted_tracer(chosen.otlp_endpoint, content=chosen.trace_content, sample=chosen.trace_sample) as tracer:
        yield tracer

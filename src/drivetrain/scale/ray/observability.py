"""What the processes of a deployment tell others: their log and their traces, as plain values like all of a plan."""

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
    """Nobody logs without a `log_format`. Traces go to `otlp_endpoint`, or where the environment of the nodes says."""

    log_format: str = ""
    log_level: str = "info"
    otlp_endpoint: str | None = None
    trace_content: bool = False
    trace_sample: float | None = None

    @property
    def told(self) -> dict[str, Any]:
        """What is not a default."""
        return {name: value for name, value in asdict(self).items() if value != getattr(Observability(), name)}


@contextlib.contextmanager
def observing(told: Mapping[str, Any]) -> Iterator[GenAiTracer | None]:
    """While entered, the tracer of this process, if anybody wants traces."""
    asked = Observability(**told)
    if asked.log_format:
        configure(asked.log_format, asked.log_level)
    with wanted_tracer(asked.otlp_endpoint, content=asked.trace_content, sample=asked.trace_sample) as tracer:
        yield tracer

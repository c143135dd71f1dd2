"""Whether anybody wants traces. The SDK is imported only then."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from drivetrain.telemetry.tracing import GenAiTracer

ENDPOINT_VARIABLES = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
)
"""Each one of them turns traces on in the programs."""


def wanted(endpoint: str | None) -> bool:
    """By a flag that names a collector, or by the environment."""
    return endpoint is not None or any(os.environ.get(name) for name in ENDPOINT_VARIABLES)


@contextlib.contextmanager
def wanted_tracer(endpoint: str | None, *, content: bool, sample: float | None) -> Iterator[GenAiTracer | None]:
    """While entered, the tracer: None if nobody asked for one. At the end, what is left is sent, for a limited time."""
    if not wanted(endpoint):
        yield None
        return
    from drivetrain.telemetry.otel import open_tracer

    with open_tracer(endpoint, content=content, sample=sample) as tracer:
        yield tracer

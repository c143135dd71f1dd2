"""Spans and what is measured of them, by a port: nothing is recorded unless a tracer is given.

Every span that is opened is closed. Times are nanoseconds of the epoch; without one, it is now.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import Enum
from typing import Protocol

from drivetrain.telemetry.w3c import trace_context

ENDPOINT_VARIABLES = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
)
"""Each one of them turns traces on in the programs."""


def wanted(endpoint: str | None) -> bool:
    """Whether somebody asks for traces: by a flag that names a collector, or by the environment."""
    return endpoint is not None or any(os.environ.get(name) for name in ENDPOINT_VARIABLES)


Value = str | float | int | bool | tuple[str, ...]
Attributes = Mapping[str, Value]


class SpanKind(Enum):
    INTERNAL = "internal"
    SERVER = "server"
    """Somebody outside waits for it."""


class Span(Protocol):
    @property
    def recorded(self) -> bool:
        """Whether anybody will see it. If not, what only `set` needs does not have to be worked out."""
        ...

    @property
    def context(self) -> Mapping[str, str] | None:
        """Trace headers for another server that does a part of the work: its spans are then below this one.

        Where no span is sent, they are the caller's own, and None if it sent none.
        """
        ...

    def set(self, attributes: Attributes) -> None:
        """Add attributes. Prompts and outputs go in only where the tracer's `content` says so."""
        ...

    def child(self, name: str, began_ns: int, ended_ns: int, *, error_type: str | None = None) -> None:
        """A part of this span that is over already."""
        ...

    def event(self, name: str, attributes: Attributes, at_ns: int) -> None:
        """Something that happened within it."""
        ...

    def measure(self, name: str, seconds: float, attributes: Attributes) -> None:
        """One more value of a histogram of `genai.HISTOGRAMS`, counted also where the span is not recorded."""
        ...

    def end(self, *, error_type: str | None = None, message: str = "", at_ns: int | None = None) -> None:
        """Close the span; with the type of an error, as failed. Called exactly once."""
        ...


class Tracer(Protocol):
    @property
    def active(self) -> bool:
        """Whether spans are worth opening at all."""
        ...

    @property
    def content(self) -> bool:
        """Whether prompts and outputs were asked for."""
        ...

    def start(
        self,
        name: str,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        parent: Mapping[str, str] | None = None,
        attributes: Attributes | None = None,
        began_ns: int | None = None,
    ) -> Span:
        """Open a span. `parent` holds the caller's trace headers, if it sent any; bad ones are as none."""
        ...


class NoSpan:
    """What is done for it elsewhere is below the caller's own span."""

    recorded = False

    def __init__(self, parent: Mapping[str, str] | None = None) -> None:
        self.context = trace_context(parent)

    def set(self, attributes: Attributes) -> None:
        return None

    def child(self, name: str, began_ns: int, ended_ns: int, *, error_type: str | None = None) -> None:
        return None

    def event(self, name: str, attributes: Attributes, at_ns: int) -> None:
        return None

    def measure(self, name: str, seconds: float, attributes: Attributes) -> None:
        return None

    def end(self, *, error_type: str | None = None, message: str = "", at_ns: int | None = None) -> None:
        return None


class NoTracer:
    """The default: records nothing."""

    active = False
    content = False

    def start(
        self,
        name: str,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        parent: Mapping[str, str] | None = None,
        attributes: Attributes | None = None,
        began_ns: int | None = None,
    ) -> Span:
        return NoSpan(parent)

"""Spans and measurements, by OpenTelemetry's API. Its providers decide where they go; none of them is global here.

A request that nobody traces has no tracer: `None`. Times are nanoseconds of the epoch.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider, NoOpMeterProvider
from opentelemetry.trace import (
    NonRecordingSpan,
    NoOpTracerProvider,
    Span,
    SpanKind,
    Status,
    StatusCode,
    TracerProvider,
    get_current_span,
)
from opentelemetry.trace.propagation import set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from drivetrain import __version__
from drivetrain.core.errors import DrivetrainError
from drivetrain.telemetry.content import error_text
from drivetrain.telemetry.genai import HISTOGRAMS, REQUEST_DURATION, Attributes, Operation, error_type, identity
from drivetrain.telemetry.w3c import trace_context

_W3C = TraceContextTextMapPropagator()


class GenAiTracer:
    """Opens spans and keeps the histograms of the conventions for generative AI.

    What is not given goes nowhere: without `spans` there are only the measurements, and the caller's trace headers are
    handed on. `content` is whether prompts, outputs and what errors say were asked for.
    """

    def __init__(
        self, spans: TracerProvider | None = None, meters: MeterProvider | None = None, *, content: bool = False
    ) -> None:
        self.content = content
        self._tracer = (spans or NoOpTracerProvider()).get_tracer("drivetrain", __version__)
        meter = (meters or NoOpMeterProvider()).get_meter("drivetrain", __version__)
        self._histograms = {
            name: meter.create_histogram(name, "s", meaning, explicit_bucket_boundaries_advisory=bounds)
            for name, (meaning, bounds) in HISTOGRAMS.items()
        }

    def start(
        self,
        name: str,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        parent: Mapping[str, str] | None = None,
        attributes: Attributes | None = None,
        began_ns: int | None = None,
    ) -> Span:
        """`parent` holds the caller's trace headers; bad ones are as none. None: below the program's current span."""
        context = None if parent is None else _W3C.extract(trace_context(parent) or {}, Context())
        span = self._tracer.start_span(name, context, kind, attributes, start_time=began_ns)
        if not span.get_span_context().is_valid:  # before 1.41, a tracer that does nothing loses the parent
            return NonRecordingSpan(get_current_span(context).get_span_context())
        return span

    def request(self, operation: Operation, model: str | None, parent: Mapping[str, str] | None, began_ns: int) -> Span:
        """`model` is None where none was found."""
        return self.start(
            operation.value if model is None else f"{operation.value} {model}",
            kind=SpanKind.SERVER,
            parent=parent,
            attributes=identity(operation, model),
            began_ns=began_ns,
        )

    def child(self, span: Span, name: str, began_ns: int, ended_ns: int, failed: str | None = None) -> None:
        """A part of a span that is over already."""
        part = self._tracer.start_span(name, set_span_in_context(span), start_time=began_ns)
        end_span(part, failed, at_ns=ended_ns)

    def measure(self, span: Span, name: str, seconds: float, attributes: Attributes) -> None:
        """One more value of a histogram, counted also where the span is not recorded."""
        self._histograms[name].record(seconds, attributes, set_span_in_context(span))

    def end(self, span: Span, error: BaseException | None, at_ns: int) -> None:
        """What an error says may quote the caller, so it goes with the content."""
        end_span(span, error_type(error), error_text(error) if self.content and error is not None else "", at_ns=at_ns)

    def refuse(
        self,
        operation: Operation,
        error: DrivetrainError,
        *,
        model: str | None = None,
        parent: Mapping[str, str] | None = None,
        began_ns: int,
    ) -> None:
        """The whole span of a request that was refused before there was anything to do for it."""
        now = max(began_ns, time.time_ns())
        span = self.request(operation, model, parent, began_ns)
        about = identity(operation, model) | {"error.type": error.code}
        self.measure(span, REQUEST_DURATION, (now - began_ns) / 1e9, about)
        self.end(span, error, now)


def end_span(span: Span, failed: str | None = None, message: str = "", *, at_ns: int | None = None) -> None:
    """`failed` is the type of an error."""
    if failed is not None:
        span.set_attribute("error.type", failed)
        span.set_status(Status(StatusCode.ERROR, message or None))
    span.end(at_ns)


def headers_below(span: Span) -> Mapping[str, str] | None:
    """Trace headers for another server that does a part of the work: its spans are then below this one.

    Also of a span that the sampler left out: that server then leaves out its own. Of one that goes nowhere they are
    the caller's, and None if it sent none.
    """
    headers: dict[str, str] = {}
    _W3C.inject(headers, set_span_in_context(span))
    return headers or None

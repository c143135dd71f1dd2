"""A tracer for tests that keeps every span, open or closed, with all that was said of it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pytest
from opentelemetry.context import Context
from opentelemetry.metrics import Histogram, MeterProvider, NoOpMeter
from opentelemetry.trace import (
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    TracerProvider,
    get_current_span,
)

from drivetrain.telemetry import genai
from drivetrain.telemetry.genai import Value
from drivetrain.telemetry.tracing import GenAiTracer, headers_below


class RecordedSpan(Span):
    """`ends` has the type of the error, or None, of each time that it was closed; `parent` the caller's headers."""

    def __init__(
        self, tracer: Spans, name: str, context: Context | None, kind: SpanKind, began_ns: int | None, number: int
    ) -> None:
        self.name = name
        self.kind = kind
        self.above = get_current_span(context)
        self.began_ns = began_ns
        self.recorded = tracer.recorded
        self.attributes: dict[str, Value] = {}
        self.children: list[tuple[str, int, int, str | None]] = []
        self.events: list[tuple[str, dict[str, Value]]] = []
        self.measures: list[tuple[str, float, dict[str, Value]]] = []
        self.ends: list[str | None] = []
        self.message = ""
        self.failed = False
        self.ended_ns: int | None = None
        self._place = SpanContext(int("a" * 32, 16), number, is_remote=False, trace_flags=TraceFlags(1))

    @property
    def parent(self) -> Mapping[str, str] | None:
        return headers_below(self.above)

    @property
    def context(self) -> Mapping[str, str] | None:
        return headers_below(self)

    def get_span_context(self) -> SpanContext:
        return self._place

    def is_recording(self) -> bool:
        return self.recorded

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        self.attributes |= attributes

    def set_attribute(self, key: str, value: Any) -> None:
        self.attributes[key] = value

    def add_event(self, name: str, attributes: Any = None, timestamp: int | None = None) -> None:
        assert self.began_ns is not None
        assert timestamp is not None
        assert timestamp >= self.began_ns
        self.events.append((name, dict(attributes)))

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        assert isinstance(status, Status)
        self.failed, self.message = status.status_code is StatusCode.ERROR, status.description or ""

    def end(self, end_time: int | None = None) -> None:
        """Of a part that is over, only its parent tells."""
        kind = self.attributes.pop("error.type", None)
        assert kind is None or isinstance(kind, str)
        assert self.failed == (kind is not None)
        self.ends.append(kind)
        self.ended_ns = end_time
        if isinstance(self.above, RecordedSpan):
            assert self.began_ns is not None
            assert end_time is not None
            self.above.children.append((self.name, self.began_ns, end_time, kind))

    def update_name(self, name: str) -> None:
        raise AssertionError("the name of a span does not change")

    def record_exception(self, *_: Any, **__: Any) -> None:
        raise AssertionError("what an exception says may quote the caller")


class Spans(TracerProvider, Tracer):
    """Both the provider and the tracer. `context` of a span is valid, and of no other span."""

    def __init__(self, span: type[RecordedSpan], *, recorded: bool) -> None:
        self._span = span
        self.recorded = recorded
        self.opened: list[RecordedSpan] = []

    def get_tracer(self, *_: Any, **__: Any) -> Tracer:
        return self

    def start_span(
        self,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Any = None,
        links: Any = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
    ) -> RecordedSpan:
        span = self._span(self, name, context, kind, start_time, len(self.opened) + 1)
        span.set_attributes(attributes or {})
        self.opened.append(span)
        return span

    def start_as_current_span(self, *_: Any, **__: Any) -> AbstractContextManager[Span]:  # type: ignore[override]
        raise AssertionError("nothing here is global")


class Measures(MeterProvider, NoOpMeter):
    """Both the provider and the meter: a measurement is kept by the span that it was made in."""

    def __init__(self) -> None:
        NoOpMeter.__init__(self, "tests")

    def get_meter(self, *_: Any, **__: Any) -> NoOpMeter:
        return self

    def create_histogram(self, name: str, *_: Any, **__: Any) -> Histogram:
        return SpansHistogram(name)


class SpansHistogram(Histogram):
    def __init__(self, name: str) -> None:
        self.name = name

    def record(self, amount: float, attributes: Any = None, context: Context | None = None) -> None:
        span = get_current_span(context)
        assert isinstance(span, RecordedSpan)
        span.measures.append((self.name, amount, dict(attributes)))


class RecordingTracer(GenAiTracer):
    def __init__(
        self, span: type[RecordedSpan] = RecordedSpan, *, content: bool = False, recorded: bool = True
    ) -> None:
        self._opened = Spans(span, recorded=recorded)
        super().__init__(self._opened, Measures(), content=content)

    @property
    def spans(self) -> list[RecordedSpan]:
        """Those that stand for something of their own, and are no part of another."""
        return [span for span in self._opened.opened if not isinstance(span.above, RecordedSpan)]

    @property
    def requests(self) -> list[RecordedSpan]:
        return [span for span in self.spans if span.kind is SpanKind.SERVER]


def checked(span: RecordedSpan, phases: Sequence[str], error: str | None = None) -> RecordedSpan:
    """Closed once; its children are these, each from the end of the one before to the end of the span."""
    assert span.kind is SpanKind.SERVER
    assert span.ends == [error]
    assert [name for name, *_ in span.children] == list(phases)
    assert span.began_ns is not None
    assert span.ended_ns is not None
    times = [span.began_ns, *itertools.chain(*((b, e) for _, b, e, _ in span.children)), span.ended_ns]
    assert times == sorted(times)
    assert times[2::2] == times[3::2]
    assert [failed for *_, failed in span.children] == [None] * (len(phases) - 1) + [error] * bool(phases)
    durations = [m for m in span.measures if m[0] == genai.REQUEST_DURATION]
    assert len(durations) == 1
    assert durations[0][1] == pytest.approx((span.ended_ns - span.began_ns) / 1e9, abs=1e-6)
    assert durations[0][2].get("error.type") == error
    return span

"""A tracer for tests that keeps every span, open or closed, with all that was said of it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from drivetrain.telemetry import genai
from drivetrain.telemetry.tracing import Attributes, SpanKind, Value


@dataclass
class RecordedSpan:
    """`ends` has the type of the error, or None, of each time that it was closed."""

    name: str
    kind: SpanKind
    parent: Mapping[str, str] | None
    began_ns: int | None
    recorded: bool = True
    context: Mapping[str, str] | None = None
    attributes: dict[str, Value] = field(default_factory=dict)
    children: list[tuple[str, int, int, str | None]] = field(default_factory=list)
    events: list[tuple[str, dict[str, Value]]] = field(default_factory=list)
    measures: list[tuple[str, float, dict[str, Value]]] = field(default_factory=list)
    ends: list[str | None] = field(default_factory=list)
    message: str = ""
    ended_ns: int | None = None

    def set(self, attributes: Attributes) -> None:
        self.attributes |= attributes

    def child(self, name: str, began_ns: int, ended_ns: int, *, error_type: str | None = None) -> None:
        self.children.append((name, began_ns, ended_ns, error_type))

    def event(self, name: str, attributes: Attributes, at_ns: int) -> None:
        assert self.began_ns is not None
        assert at_ns >= self.began_ns
        self.events.append((name, dict(attributes)))

    def measure(self, name: str, seconds: float, attributes: Attributes) -> None:
        self.measures.append((name, seconds, dict(attributes)))

    def end(self, *, error_type: str | None = None, message: str = "", at_ns: int | None = None) -> None:
        self.ends.append(error_type)
        self.message, self.ended_ns = message, at_ns


class RecordingTracer:
    """`context` of a span is valid, and of no other span."""

    active = True

    def __init__(self, *, content: bool = False, recorded: bool = True) -> None:
        self.content = content
        self.recorded = recorded
        self.spans: list[RecordedSpan] = []

    def start(
        self,
        name: str,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        parent: Mapping[str, str] | None = None,
        attributes: Attributes | None = None,
        began_ns: int | None = None,
    ) -> RecordedSpan:
        context = {"traceparent": f"00-{'a' * 32}-{len(self.spans) + 1:016x}-01"}
        span = RecordedSpan(name, kind, parent, began_ns, self.recorded, context, dict(attributes or {}))
        self.spans.append(span)
        return span

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

"""A tracer for tests that keeps every span, open or closed, with all that was said of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from drivetrain.telemetry.tracing import Attributes, Kind, Value


@dataclass
class RecordedSpan:
    """`ends` has the type of the error, or None, of each time that it was closed."""

    name: str
    kind: Kind
    parent: Mapping[str, str] | None
    began_ns: int | None
    recorded: bool = True
    attributes: dict[str, Value] = field(default_factory=dict)
    children: list[tuple[str, int, int, str | None]] = field(default_factory=list)
    measures: list[tuple[str, float, dict[str, Value]]] = field(default_factory=list)
    ends: list[str | None] = field(default_factory=list)
    message: str = ""
    ended_ns: int | None = None

    def set(self, attributes: Attributes) -> None:
        self.attributes |= attributes

    def child(self, name: str, began_ns: int, ended_ns: int, *, error_type: str | None = None) -> None:
        self.children.append((name, began_ns, ended_ns, error_type))

    def measure(self, name: str, seconds: float, attributes: Attributes) -> None:
        self.measures.append((name, seconds, dict(attributes)))

    def end(self, *, error_type: str | None = None, message: str = "", at_ns: int | None = None) -> None:
        self.ends.append(error_type)
        self.message, self.ended_ns = message, at_ns


class RecordingTracer:
    active = True

    def __init__(self, *, content: bool = False, recorded: bool = True) -> None:
        self.content = content
        self.recorded = recorded
        self.spans: list[RecordedSpan] = []

    def start(
        self,
        name: str,
        *,
        kind: Kind = Kind.INTERNAL,
        parent: Mapping[str, str] | None = None,
        attributes: Attributes | None = None,
        began_ns: int | None = None,
    ) -> RecordedSpan:
        span = RecordedSpan(name, kind, parent, began_ns, self.recorded, dict(attributes or {}))
        self.spans.append(span)
        return span

    @property
    def requests(self) -> list[RecordedSpan]:
        return [span for span in self.spans if span.kind is Kind.SERVER]

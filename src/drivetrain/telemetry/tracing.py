"""Spans, by a port: nothing is recorded unless a tracer is given. Every span that is opened is closed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Span(Protocol):
    def set(self, key: str, value: str | float | int | bool) -> None:
        """Set an attribute. Prompts and outputs never go in here."""
        ...

    def end(self, error: BaseException | None = None) -> None:
        """Close the span; with an error, as failed. Called exactly once."""
        ...


class Tracer(Protocol):
    def start(self, name: str, *, parent: Mapping[str, str] | None = None) -> Span:
        """Open a span. `parent` holds the caller's trace headers, if it sent any."""
        ...


class NoSpan:
    def set(self, key: str, value: str | float | int | bool) -> None:
        return None

    def end(self, error: BaseException | None = None) -> None:
        return None


class NoTracer:
    """The default: records nothing."""

    def start(self, name: str, *, parent: Mapping[str, str] | None = None) -> Span:
        return NoSpan()

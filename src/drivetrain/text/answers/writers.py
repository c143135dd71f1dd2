"""Gives out an answer's parts as events. Text is trimmed as it streams: spaces are held until text follows them."""

from __future__ import annotations

from collections.abc import Callable

from drivetrain.core.answer import AnswerEvent, ArgumentsPiece, CallBegun, CallEnded, Flaw

Emit = Callable[[AnswerEvent], None]


class TextWriter:
    """One part of the message, content or reasoning.

    With `keeps_edges`, only spaces next to a marker are trimmed, not those at the start and the end of the answer.
    """

    def __init__(self, emit: Callable[[str], None], *, keeps_edges: bool = False) -> None:
        self._emit = emit
        self._keeps_edges = keeps_edges
        self._marked = False
        """Whether a marker has been read since the last text that was given out."""
        self._held: list[str] = []
        self._begun = False
        self._segments = 0
        self._gap = ""
        self._wrote = False
        self._strips = True

    def segment(self, *, strips: bool = True, join: str | None = None) -> None:
        """Another stretch of this part begins. Without `join`, a blank line parts it from text before it."""
        self._held.clear()
        self._begun, self._strips = False, strips
        self._gap = "\n\n" if self._wrote and join is None else ""
        if join and self._segments:
            self._give(join)
        self._segments += 1

    def write(self, text: str) -> None:
        if not self._strips:
            self._give(text)
            return
        body = text if self._begun or (self._keeps_edges and not self._marked) else text.lstrip()
        kept = body.rstrip()
        if kept:
            self._give(self._gap + "".join(self._held) + kept)
            self._held.clear()
            self._gap, self._begun, self._marked = "", True, False
        if len(kept) < len(body) and (self._begun or self._keeps_edges):
            self._held.append(body[len(kept) :])

    def mark(self) -> None:
        """There is a marker here."""
        self._marked = True
        if not self._begun:
            self._held.clear()

    def finish(self) -> None:
        """The answer has ended."""
        if self._keeps_edges and not self._marked:
            self._give("".join(self._held))

    def _give(self, text: str) -> None:
        if text:
            self._wrote = True
            self._emit(text)


class CallWriter:
    """The calls, one after another."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._index = 0
        self._open = False

    @property
    def open(self) -> bool:
        """Whether a call has begun that has not ended."""
        return self._open

    def begin(self, name: str) -> None:
        self._open = True
        self._emit(CallBegun(self._index, name))

    def arguments(self, text: str) -> None:
        if text:
            self._emit(ArgumentsPiece(self._index, text))

    def end(self) -> None:
        self._emit(CallEnded(self._index))
        self._open = False
        self._index += 1

    def spoil(self, flaw: Flaw, raw: str) -> None:
        """The call is of no use. If its name was not even read, it has none."""
        if not self._open:
            self.begin("")
        self._emit(CallEnded(self._index, flaw, raw))
        self._open = False
        self._index += 1

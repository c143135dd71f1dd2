"""What callers are told of an answer, whole or as a stream: content, reasoning, and calls that have a name.

A malformed call whose name was not read is told as content, by its raw text. That stands behind all other content,
since a whole message does not say where the call stood. One that was cut off before its name is not told. A call that
was cut off or is malformed further on keeps its name and its arguments as far as they were read: a stream has told them
already.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from drivetrain.core.answer import (
    AnswerEvent,
    AnswerMessage,
    ArgumentsPiece,
    CallBegun,
    CallEnded,
    ContentPiece,
    Flaw,
    ReasoningPiece,
)

ToldPiece = ContentPiece | ReasoningPiece | CallBegun | ArgumentsPiece


def told(message: AnswerMessage) -> AnswerMessage:
    """The whole message. The calls are numbered from 0 again."""
    named = [call for call in message.tool_calls if call.name]
    content = message.content or ""
    unnamed = [call for call in message.tool_calls if not call.name and call.flaw is not Flaw.CUT_OFF]
    content += _behind(content != "", [call.raw or "" for call in unnamed])
    calls = tuple(replace(call, index=i) for i, call in enumerate(named))
    return replace(message, content=content or None, tool_calls=calls)


class AnswerTeller:
    """The same for one choice of a stream. The pieces, joined, are the message of `told`."""

    def __init__(self) -> None:
        self._has_content = False
        self._calls = 0
        self._is_named = False
        self._unnamed: list[str] = []

    def take(self, parts: Iterable[AnswerEvent]) -> Iterator[ToldPiece]:
        """Pieces of the same kind that follow each other come as one; none is empty."""
        last: ToldPiece | None = None
        for part in parts:
            piece = self._piece(part)
            if piece is None:
                continue
            joined = None if last is None else _joined(last, piece)
            if joined is None and last is not None:
                yield last
            last = joined or piece
        if last is not None:
            yield last

    def end(self) -> str:
        """The rest of the content, once the choice has finished."""
        return _behind(self._has_content, self._unnamed)

    def _piece(self, part: AnswerEvent) -> ToldPiece | None:
        if isinstance(part, ContentPiece):
            self._has_content = self._has_content or part.text != ""
            return part if part.text else None
        if isinstance(part, ReasoningPiece):
            return part if part.text else None
        if isinstance(part, CallBegun):
            self._is_named = part.name != ""
            self._calls += self._is_named
            return replace(part, index=self._calls - 1) if self._is_named else None
        if isinstance(part, ArgumentsPiece):
            return replace(part, index=self._calls - 1) if self._is_named and part.text else None
        if isinstance(part, CallEnded) and not self._is_named and part.flaw is not Flaw.CUT_OFF:
            self._unnamed.append(part.raw or "")
        return None


def _joined(first: ToldPiece, second: ToldPiece) -> ToldPiece | None:
    if isinstance(first, CallBegun) or type(first) is not type(second):
        return None
    return replace(first, text=first.text + second.text)


def _behind(has_content: bool, unnamed: list[str]) -> str:
    texts = [text for text in unnamed if text]
    return "\n".join([*([""] if has_content and texts else []), *texts])

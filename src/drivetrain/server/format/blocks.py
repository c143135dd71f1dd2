"""An answer as blocks that follow each other, each opened, filled and closed: reasoning, text, or one call.

The Responses API calls them items, the Messages API content blocks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from drivetrain.core.answer import ArgumentsPiece, CallBegun, ContentPiece, ReasoningPiece
from drivetrain.core.events import Delta
from drivetrain.core.results import Choice, TokenLogprob
from drivetrain.text.answers.told import AnswerTeller, ToldPiece, told


class BlockKind(Enum):
    REASONING = "reasoning"
    TEXT = "text"
    CALL = "call"


@dataclass(slots=True)
class Block:
    """`text` is the reasoning, the text, or the call's arguments, as far as they have come."""

    index: int
    kind: BlockKind
    call_id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def arguments(self) -> dict[str, Any]:
        """Of a call, for APIs that have no place for their text: empty if it was cut off or is malformed."""
        try:
            value = json.loads(self.text)
            json.dumps(value, allow_nan=False, ensure_ascii=False).encode()  # no infinity, no lone surrogate
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}


@dataclass(frozen=True, slots=True)
class Opened:
    block: Block


@dataclass(frozen=True, slots=True)
class Grown:
    block: Block
    text: str


@dataclass(frozen=True, slots=True)
class Closed:
    block: Block


BlockEvent = Opened | Grown | Closed


class Blocks:
    """Those of one choice of a stream, in order; at most one is open."""

    def __init__(self) -> None:
        self._teller = AnswerTeller()
        self._open: Block | None = None
        self.closed: list[Block] = []

    def take(self, delta: Delta) -> Iterator[BlockEvent]:
        """What new text of the choice adds."""
        for piece in _content(delta.text) if delta.parts is None else self._teller.take(delta.parts):
            yield from self._piece(piece)

    def end(self) -> Iterator[BlockEvent]:
        """The choice has finished."""
        for piece in _content(self._teller.end()):
            yield from self._piece(piece)
        yield from self._close()

    def _piece(self, piece: ToldPiece) -> Iterator[BlockEvent]:
        if isinstance(piece, CallBegun):
            yield from self._close()
            yield self._opened(BlockKind.CALL, piece.id, piece.name)
            return
        kind = _KINDS[type(piece)]
        if self._open is None or self._open.kind is not kind:
            yield from self._close()
            yield self._opened(kind)
        assert self._open is not None
        self._open.pieces.append(piece.text)
        yield Grown(self._open, piece.text)

    def _opened(self, kind: BlockKind, call_id: str = "", name: str = "") -> Opened:
        self._open = Block(len(self.closed), kind, call_id, name)
        return Opened(self._open)

    def _close(self) -> Iterator[BlockEvent]:
        if self._open is not None:
            block, self._open = self._open, None
            self.closed.append(block)
            yield Closed(block)


def _content(text: str) -> tuple[ContentPiece, ...]:
    return (ContentPiece(text),) if text else ()


_KINDS = {ContentPiece: BlockKind.TEXT, ReasoningPiece: BlockKind.REASONING, ArgumentsPiece: BlockKind.CALL}


def blocks_of(choice: Choice) -> list[Block]:
    """Those of a whole answer. Its message has all reasoning in front and all calls behind."""
    logprobs = list(choice.logprobs or ())
    if choice.message is None:
        return [Block(0, BlockKind.TEXT, pieces=[choice.text], logprobs=logprobs)] if choice.text else []
    message = told(choice.message)
    blocks: list[Block] = []
    if message.reasoning:
        blocks.append(Block(0, BlockKind.REASONING, pieces=[message.reasoning]))
    if message.content:
        told_entries = _of_content(logprobs, choice.text, message.content)
        blocks.append(Block(len(blocks), BlockKind.TEXT, pieces=[message.content], logprobs=told_entries))
    for call in message.tool_calls:
        blocks.append(Block(len(blocks), BlockKind.CALL, call.id, call.name, [call.arguments]))
    return blocks


def _of_content(entries: list[TokenLogprob], text: str, content: str) -> list[TokenLogprob]:
    """Those of the tokens that the content is made of: none of reasoning or of calls. Content that stands around a call
    cannot be found in one piece; then there are none."""
    start = text.rfind(content)
    if start < 0 or not entries:
        return []
    ends = [entry.text_offset for entry in entries[1:]] + [len(text)]
    stop = start + len(content)
    return [entry for entry, end in zip(entries, ends, strict=True) if entry.text_offset < stop and end > start]

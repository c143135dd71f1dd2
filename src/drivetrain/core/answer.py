"""What a model's answer says once its markers are read: content, reasoning and tool calls, whole or as a stream.

The events of a stream, joined, are the whole message; none of them is ever taken back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any


class Flaw(StrEnum):
    """What is wrong with a call that cannot be used."""

    CUT_OFF = "cut_off"
    """The answer ended before the call did."""

    MALFORMED = "malformed"
    """The call is not written as its form demands."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call. Without a `flaw`, `arguments` is the text of a JSON object.

    With one, `name` and `arguments` are as far as they were read (`name` is empty if it was not), and `raw` is the text
    of the whole call with its markers, as the model wrote it. A worker gives each call an `id`.
    """

    index: int
    name: str
    arguments: str
    flaw: Flaw | None = None
    raw: str | None = None
    id: str = ""


@dataclass(frozen=True, slots=True)
class AnswerMessage:
    """A whole answer. `content` and `reasoning` have no whitespace around them, and are None if there is none.

    `extra` holds what else a model's own `response_template` reads from an answer, by field.
    """

    content: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class ContentPiece:
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningPiece:
    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """Calls are numbered from 0. The next call begins after this one has ended. `id` is as in `ToolCall`."""

    index: int
    name: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class ArgumentsPiece:
    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """`flaw` and `raw` are those of `ToolCall`."""

    index: int
    flaw: Flaw | None = None
    raw: str | None = None


@dataclass(frozen=True, slots=True)
class ExtraField:
    """A field of a `response_template` that is neither content, reasoning nor calls. A later value replaces it."""

    name: str
    value: Any


AnswerEvent = ContentPiece | ReasoningPiece | CallBegun | ArgumentsPiece | CallEnded | ExtraField

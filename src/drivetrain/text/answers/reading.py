"""Reads the answers to one chat while they are detokenized: what their text adds to the message, and what is reasoning.

The count of reasoning tokens does not depend on how the ids were split into steps.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from drivetrain.core.answer import AnswerEvent, ArgumentsPiece, CallBegun, CallEnded
from drivetrain.core.prompt import Prompt
from drivetrain.core.tokenizer import Tokenizer
from drivetrain.core.tools import Tool
from drivetrain.text.answers.forms import Region
from drivetrain.text.answers.lookup import AnswerForm, look_up
from drivetrain.text.answers.parser import TextReader
from drivetrain.text.answers.schemas import ToolSchemas
from drivetrain.text.answers.table import FORMS


class SpanOfToken(Protocol):
    """A sampled id, and the offsets in the text between which it stands."""

    id: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerReading:
    """How the answers to one chat are read.

    Calls are read if there are `tools`; their `schemas` are parsed once for all choices. `prefix` is what the prompt
    has written of the answer. A `tokenizer` is given if the engine gives ids: then special tokens are known by them.
    With `content_last`, content ends the reading. With `calls_only`, the answer is held to be calls.
    """

    form: AnswerForm
    tools: tuple[Tool, ...] = ()
    schemas: ToolSchemas = field(default_factory=ToolSchemas)
    tokenizer: Tokenizer | None = None
    prefix: str = ""
    content_last: bool = False
    calls_only: bool = False

    def reader(self) -> ChoiceReader:
        """For one choice."""
        return ChoiceReader(self)


class ChoiceReader:
    """What one choice says. `read` everything that is given out of its text, in order, and then `finish`."""

    def __init__(self, reading: AnswerReading) -> None:
        bound, prefix = look_up(reading.form, reading.tokenizer, reading.prefix, calls=bool(reading.tools))
        self.num_reasoning = 0
        """Tokens of reasoning, its markers included."""
        self.has_calls = False
        """Whether there is a call without a flaw."""
        self.may_be_stuck = reading.calls_only
        """Whether a model that makes one call again and again cannot end by itself."""
        self._call = self._last_call = ""
        self._same_calls = 0
        self._text = TextReader(
            bound,
            reading.schemas,
            verbatim=True,
            content_last=reading.content_last,
            calls_only=reading.calls_only,
        )
        self._symbols = bound.symbols.by_id(reading.tokenizer) if reading.tokenizer is not None else {}
        self._events: list[AnswerEvent] = []
        if prefix:
            self._text.begin(bound.symbols.encode(prefix))
            self._text.feed("")

    @property
    def is_reasoning(self) -> bool:
        """Whether what was read last belongs to the reasoning."""
        return self._text.is_reasoning

    @property
    def has_reasoned(self) -> bool:
        """Whether reasoning was opened, in the prompt or since."""
        return self._text.has_reasoned

    @property
    def is_stuck(self) -> bool:
        """Whether the last calls are the same."""
        return self.may_be_stuck and self._same_calls >= SAME_CALLS

    def read(self, base: int, text: str, tokens: Sequence[SpanOfToken]) -> tuple[AnswerEvent, ...]:
        """The text from offset `base` on, and the tokens that end in it. Returns what is now certain."""
        at, upto = base, base + len(text)
        for token in tokens:
            end = max(at, min(token.end, upto))
            piece = text[at - base : end - base]
            at = end
            if token.start == token.end and token.start <= upto:
                piece += self._symbols.get(token.id, "")
            was_reasoning = self._text.is_reasoning
            self._feed(piece)
            self.num_reasoning += was_reasoning or self._text.is_reasoning
        self._feed(text[at - base :])
        return self._taken()

    def finish(self) -> tuple[AnswerEvent, ...]:
        """The choice has ended. Returns what was held back."""
        self._events += self._text.finish()
        return self._taken()

    def _feed(self, text: str) -> None:
        if text:
            self._events += self._text.feed(text)

    def _taken(self) -> tuple[AnswerEvent, ...]:
        events, self._events = self._events, []
        return tuple(map(self._known, events))

    def _known(self, event: AnswerEvent) -> AnswerEvent:
        if self.may_be_stuck:
            self._compare(event)
        if type(event) is CallBegun:
            return replace(event, id=f"call_{secrets.token_hex(12)}")
        if type(event) is CallEnded and event.flaw is None:
            self.has_calls = True
        return event

    def _compare(self, event: AnswerEvent) -> None:
        if type(event) is CallBegun:
            self._call = event.name
        elif type(event) is ArgumentsPiece:
            self._call += event.text
        elif type(event) is CallEnded:
            self._same_calls = self._same_calls + 1 if self._call == self._last_call else 1
            self._last_call = self._call


SAME_CALLS = 3
"""In a row: then a choice that must be calls ends."""


def begun(form: AnswerForm, prompt: Prompt) -> str:
    """What the prompt has written of the answer, in text of our own: from the beginning of the reasoning on, whether or
    not it was closed again. A caller's text opens nothing.
    """
    ours = _own_end(prompt)
    if not isinstance(form, str):
        return ours
    return max((_open_since(region, ours) for region in FORMS[form].reasoning_regions), key=len, default="")


def _own_end(prompt: Prompt) -> str:
    own: list[str] = []
    for segment in reversed(prompt.segments):
        if segment.literal:
            break
        own.append(segment.text)
    return "".join(reversed(own))


def _open_since(region: Region, text: str) -> str:
    """From the region's last opening on."""
    at = max((text.rfind(marker) for marker in region.opens), default=-1)
    return text[at:] if at >= 0 else ""

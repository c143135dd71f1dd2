"""The two ways to read an answer: `parse_answer` for a whole one, `AnswerParser` for one that streams."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from drivetrain.core.answer import (
    AnswerEvent,
    AnswerMessage,
    ArgumentsPiece,
    CallBegun,
    CallEnded,
    ContentPiece,
    ExtraField,
    ReasoningPiece,
    ToolCall,
)
from drivetrain.core.errors import InvalidRequest
from drivetrain.core.tokenizer import Tokenizer
from drivetrain.text.answers.binding import BoundForm
from drivetrain.text.answers.executor import Executor
from drivetrain.text.answers.lookup import AnswerForm, look_up
from drivetrain.text.answers.schemas import ToolSchemas
from drivetrain.text.answers.source import Source
from drivetrain.text.answers.symbols import IdReader

Piece = str | int | Sequence[int]


def parse_answer(
    pieces: str | Iterable[Piece],
    *,
    form: AnswerForm,
    tools: Sequence[Any] | None = None,
    tokenizer: Tokenizer | None = None,
    prefix: str = "",
) -> AnswerMessage:
    """Read what a model said: its content, its reasoning and its tool calls.

    >>> answer = '<think>Easy.</think><tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    >>> message = parse_answer(answer, form="hermes")
    >>> message.reasoning, message.tool_calls[0].name, message.tool_calls[0].arguments
    ('Easy.', 'add', '{"a": 1}')

    `pieces` is the text, whole or in pieces, or token ids with their `tokenizer`: then markers that are special tokens
    are found by their ids, and text that spells one stays text. How the pieces are cut makes no difference.

    `form` is a name (`hermes`, `harmony`, …; the guide lists them) or a model's own `response_template`. `tools` are
    the request's, in OpenAI's shape: forms without types read arguments by their schemas. `prefix` is what the prompt
    has already written of the answer, such as `<think>`; with a `response_template`, it may be the whole prompt.

    Nothing that a model says raises an error. A call that cannot be used has a `flaw` and its `raw` text:

    >>> parse_answer('<tool_call>{"name": "add", "argu', form="hermes").tool_calls[0].flaw
    <Flaw.CUT_OFF: 'cut_off'>

    Raises `InvalidRequest` for a form that is not known or a template that cannot be used.
    """
    parser = AnswerParser(form=form, tools=tools, tokenizer=tokenizer, prefix=prefix)
    for piece in [pieces] if isinstance(pieces, str) else pieces:
        parser.feed(piece)
    parser.finish()
    return parser.message


class AnswerParser:
    """Reads an answer as it comes, with the parameters of `parse_answer`.

    The events of all calls, joined, are the whole `message`. Nothing is given out that could still turn out to be part
    of a marker, and nothing is taken back.
    """

    def __init__(
        self,
        *,
        form: AnswerForm,
        tools: Sequence[Any] | None = None,
        tokenizer: Tokenizer | None = None,
        prefix: str = "",
    ) -> None:
        bound, prefix = look_up(form, tokenizer, prefix)
        self._ids = IdReader(tokenizer, bound.symbols) if tokenizer is not None else None
        self._reader = TextReader(bound, ToolSchemas(tools))
        self._reader.begin(bound.symbols.encode(prefix))
        self._builder = MessageBuilder()

    @property
    def message(self) -> AnswerMessage:
        """What was given out so far. It is whole once `finish` was called."""
        return self._builder.message()

    def feed(self, piece: Piece) -> list[AnswerEvent]:
        """Text, or ids where the parser has a tokenizer. Returns what is now certain."""
        return self._built(self._reader.feed(self._text_of(piece)))

    def finish(self) -> list[AnswerEvent]:
        """The answer has ended. Returns what was held back."""
        return self._built(self._reader.finish())

    def _text_of(self, piece: Piece) -> str:
        if isinstance(piece, str):
            if self._ids is not None:
                raise InvalidRequest("an answer that is read with a tokenizer is given as ids", param="pieces")
            return piece
        if self._ids is None:
            raise InvalidRequest("an answer that is given as ids needs a tokenizer", param="tokenizer")
        return self._ids.read([piece] if isinstance(piece, int) else piece)

    def _built(self, events: list[AnswerEvent]) -> list[AnswerEvent]:
        for event in events:
            self._builder.add(event)
        return events


class TextReader:
    """Reads text in which special tokens are the symbols of the form. `options` are those of `Executor`."""

    def __init__(self, form: BoundForm, tools: ToolSchemas, **options: bool) -> None:
        self._source = Source()
        self._events: list[AnswerEvent] = []
        self._executor = Executor(form, self._source, tools, self._events.append, **options)
        self._run = self._executor.run()
        self._read()

    @property
    def is_reasoning(self) -> bool:
        return self._executor.is_reasoning

    @property
    def has_reasoned(self) -> bool:
        return self._executor.has_reasoned

    def begin(self, prefix: str) -> None:
        """What stands before the answer. It is read along with the first piece."""
        self._source.add(prefix)

    def feed(self, text: str) -> list[AnswerEvent]:
        self._source.add(text)
        return self._read()

    def finish(self) -> list[AnswerEvent]:
        self._source.ended = True
        return self._read()

    def _read(self) -> list[AnswerEvent]:
        next(self._run, None)
        events = self._events.copy()
        self._events.clear()
        return events


class MessageBuilder:
    """Joins events into the message."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCall] = []
        self._name = self._id = ""
        self._arguments: list[str] = []
        self._extra: dict[str, Any] = {}

    def add(self, event: AnswerEvent) -> None:
        match event:
            case ContentPiece(text):
                self._content.append(text)
            case ReasoningPiece(text):
                self._reasoning.append(text)
            case CallBegun(_, name, call_id):
                self._name, self._id, self._arguments = name, call_id, []
            case ArgumentsPiece(_, text):
                self._arguments.append(text)
            case CallEnded(index, flaw, raw):
                self._calls.append(ToolCall(index, self._name, "".join(self._arguments), flaw, raw, self._id))
            case ExtraField(name, value):
                self._extra[name] = value

    def message(self) -> AnswerMessage:
        return AnswerMessage(
            "".join(self._content) or None, "".join(self._reasoning) or None, tuple(self._calls), dict(self._extra)
        )

"""How an answer is printed: the content on stdout, then each call as a line of JSON; the reasoning is only shown.

Reasoning goes to stderr, dimmed, if that is a terminal. So what is piped on is the answer and nothing else.
"""

from __future__ import annotations

import json

from drivetrain.cli.terminal import output
from drivetrain.core.answer import CallBegun, ContentPiece, ReasoningPiece, ToolCall
from drivetrain.core.events import Delta
from drivetrain.core.results import Choice, FinishReason, Result
from drivetrain.server.format.message import call_json
from drivetrain.text.answers.told import AnswerTeller, ToldPiece, told


def print_choice(choice: Choice) -> None:
    """A whole one."""
    if choice.message is None:
        output.line(choice.text)
        return
    answer = told(choice.message)
    if answer.reasoning:
        output.aside(f"{answer.reasoning}\n\n")
    if answer.content or not answer.tool_calls:
        output.line(answer.content or "")
    for call in answer.tool_calls:
        _print_call(call)


def cut_off(result: Result, context_length: int, *, asked: int | None, more: str) -> str | None:
    """What to say of an answer that ended before the model ended it; None if none did.

    `asked` is the request's `max_tokens`, `more` how to allow more.
    """
    cut = sum(choice.finish_reason is FinishReason.LENGTH for choice in result.choices)
    if not cut or asked == 0:  # then no answer was wanted
        return None
    if len(result.choices) > 1:
        return f"({cut} of {len(result.choices)} choices were cut off; {more})"
    tokens = result.usage.completion_tokens
    if result.usage.total_tokens >= context_length and (asked is None or tokens < asked):
        return f"(cut off after {tokens} tokens: the context of {context_length} tokens is full)"
    return f"(cut off after {tokens} tokens; {more})"


class AnswerPrinter:
    """One choice, as it comes. `content` is what was printed of it."""

    def __init__(self) -> None:
        self.content = ""
        self.started = False
        """Whether anything was shown, reasoning too."""
        self._teller = AnswerTeller()
        self._reasons = False
        self._calls: list[tuple[CallBegun, list[str]]] = []

    def take(self, delta: Delta) -> None:
        if delta.parts is None:
            self._write(delta.text)
            return
        for piece in self._teller.take(delta.parts):
            self._take(piece)

    def finish(self) -> None:
        """The answer is over: what came last, the calls, and the end of the line."""
        self._write(self._teller.end())
        if self.content or not self._calls:
            self._end_reasoning()
            output.line()
        for begun, arguments in self._calls:
            _print_call(ToolCall(begun.index, begun.name, "".join(arguments), id=begun.id))

    def _take(self, piece: ToldPiece) -> None:
        if isinstance(piece, ReasoningPiece):
            if output.aside(piece.text if self._reasons or not self.content else f"\n\n{piece.text}"):
                self.started = self._reasons = True
        elif isinstance(piece, ContentPiece):
            self._write(piece.text)
        elif isinstance(piece, CallBegun):
            self._end_reasoning()
            self._calls.append((piece, []))
        else:
            self._calls[-1][1].append(piece.text)

    def _write(self, text: str) -> None:
        if text:
            self._end_reasoning()
            self.content += text
            self.started = True
            output.write(text)

    def _end_reasoning(self) -> None:
        if self._reasons:
            output.aside("\n\n")
            self._reasons = False


def _print_call(call: ToolCall) -> None:
    output.line(json.dumps(call_json(call), ensure_ascii=output.needs_ascii()))

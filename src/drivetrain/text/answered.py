"""Which call each tool's message of a chat answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from drivetrain.core.answer import ToolCall
from drivetrain.core.messages import Message


def calls_of(messages: Sequence[Message]) -> tuple[ToolCall, ...]:
    """All of the chat, in order: a call's place here is its number."""
    return tuple(call for message in messages for call in message.tool_calls)


def answered(messages: Sequence[Message]) -> Mapping[int, int]:
    """The number of the call that the message at an index answers.

    That is the latest one with its `tool_call_id`; without an id, the first one of the latest message with calls that
    has no answer yet. Other messages are not in it.
    """
    found: dict[int, int] = {}
    by_id: dict[str, int] = {}
    waiting: list[int] = []
    count = 0
    for i, message in enumerate(messages):
        if message.tool_calls:
            waiting = list(range(count, count + len(message.tool_calls)))
            by_id.update((call.id, n) for call, n in zip(message.tool_calls, waiting, strict=True) if call.id)
            count += len(waiting)
        if message.role != "tool":
            continue
        number = by_id.get(message.tool_call_id) if message.tool_call_id else next(iter(waiting), None)
        if number is not None:
            found[i] = number
            waiting = [n for n in waiting if n != number]
    return found

"""The ids of calls as a form writes them in its prompts: what clients have are the worker's own."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum

from drivetrain.core.answer import ToolCall
from drivetrain.core.messages import Message
from drivetrain.text.answered import answered, calls_of

_NINE = re.compile(r"[a-zA-Z0-9]{9}")


class CallIds(Enum):
    ANY = "any"
    """They are left as they are."""

    NUMBERED = "functions.NAME:NUMBER"
    """The calls of a chat are numbered from 0."""

    NINE_CHARS = "nine letters and digits"


def with_own_ids(messages: Sequence[Message], ids: CallIds) -> tuple[Message, ...]:
    """The chat with each call's id, and that of the message which answers it, as the form has them."""
    calls = calls_of(messages)
    if ids is CallIds.ANY or not calls:
        return tuple(messages)
    made = [_id(call, number, ids) for number, call in enumerate(calls)]
    answers = answered(messages)
    left = iter(made)
    renamed: list[Message] = []
    for i, message in enumerate(messages):
        if message.tool_calls:
            own = tuple(replace(call, id=next(left)) for call in message.tool_calls)
            message = replace(message, tool_calls=own)
        elif i in answers:
            message = replace(message, tool_call_id=made[answers[i]])
        renamed.append(message)
    return tuple(renamed)


def _id(call: ToolCall, number: int, ids: CallIds) -> str:
    if ids is CallIds.NUMBERED:
        return f"functions.{call.name}:{number}"
    if _NINE.fullmatch(call.id):
        return call.id
    return hashlib.sha256((call.id or f"{number}").encode()).hexdigest()[:9]

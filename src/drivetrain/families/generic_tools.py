"""Tools, calls and results as turns of the roles that every form has, for forms that have no others.

The calls are of the form `generic` (`text/answers/table.py`). Everything here is part of what the caller says, so none
of it can be a special token.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from drivetrain.core.answer import ToolCall
from drivetrain.core.messages import Message, Part, TextPart
from drivetrain.core.tools import Tool
from drivetrain.text.answered import answered

_APART = TextPart("\n\n")


def needs_writing(messages: Sequence[Message], tools: Sequence[Tool]) -> bool:
    return bool(tools) or any(message.tool_calls or message.role == "tool" for message in messages)


def written_out(
    messages: Sequence[Message], tools: Sequence[Tool], *, takes_system: bool = True, default_system: str = ""
) -> tuple[Message, ...]:
    """The same chat, of system, user and assistant messages that only have text and images.

    The tools are told at the end of the first system message; without one, in a new one that begins with the form's
    `default_system`; if the form takes none, before the first user message.
    """
    turns = _merged(_turns(messages))
    return tuple(_told(turns, instructions(tools), takes_system, default_system) if tools else turns)


def instructions(tools: Sequence[Tool]) -> str:
    listed = "\n".join(json.dumps(tool.as_function["function"], ensure_ascii=False) for tool in tools)
    return (
        f"You can call these functions:\n{listed}\n\n"
        "To call a function, write its name and its arguments like this:\n"
        '<tool_call>{"name": "NAME", "arguments": {"PARAMETER": VALUE}}</tool_call>\n'
        "The arguments are one JSON object that fits the function's parameters. "
        "Write one <tool_call> for each call, and nothing after the last one. "
        "You then get the results in <tool_response>. "
        "If no function is needed, answer without a call."
    )


def _turns(messages: Sequence[Message]) -> Iterator[tuple[Message, bool]]:
    """Each message in one of the three roles, and whether it had to be rewritten for that. Results that stand together
    come in the order of their calls, since they do not name them."""
    numbers = answered(messages)
    i = 0
    while i < len(messages):
        results = i
        while i < len(messages) and messages[i].role == "tool":
            i += 1
        together = sorted(range(results, i), key=lambda at: numbers.get(at, -1))
        yield from ((_result(messages[at]), True) for at in together)
        if i < len(messages):
            yield _without_calls(messages[i])
            i += 1


def _result(message: Message) -> Message:
    content = (TextPart("<tool_response>\n"), *message.content, TextPart("\n</tool_response>"))
    return Message("user", content)


def _without_calls(message: Message) -> tuple[Message, bool]:
    if not message.tool_calls:
        return message, False
    calls = TextPart("\n".join(map(_call, message.tool_calls)))
    said = (*message.content, TextPart("\n")) if message.text or message.images else ()
    return replace(message, content=(*said, calls), tool_calls=()), True


def _call(call: ToolCall) -> str:
    arguments = call.arguments if _is_object(call.arguments) else json.dumps(call.arguments, ensure_ascii=False)
    return f'<tool_call>{{"name": {json.dumps(call.name, ensure_ascii=False)}, "arguments": {arguments}}}</tool_call>'


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _merged(turns: Iterator[tuple[Message, bool]]) -> list[Message]:
    """Turns of one role that follow each other become one, if any of them was rewritten: many forms need the roles to
    alternate."""
    merged: list[tuple[Message, bool]] = []
    for message, rewritten in turns:
        if merged and message.role != "system" and merged[-1][0].role == message.role and (rewritten or merged[-1][1]):
            before = merged.pop()[0]
            message = _joined(before.content, message, TextPart("\n") if message.role == "user" else _APART)
            rewritten = True
        merged.append((message, rewritten))
    return [message for message, _ in merged]


def _told(turns: list[Message], text: str, takes_system: bool, default_system: str) -> list[Message]:
    role = "system" if takes_system else "user"
    at = next((i for i, message in enumerate(turns) if message.role == role), None)
    told = TextPart(text)
    if at is None:
        before = (TextPart(default_system), _APART) if takes_system and default_system else ()
        return [Message(role, (*before, told)), *turns]
    given = turns[at]
    if takes_system:
        content = (*given.content, _APART, told) if given.text else (told,)
        return [*turns[:at], replace(given, content=content), *turns[at + 1 :]]
    return [*turns[:at], _joined((told,), given, _APART), *turns[at + 1 :]]


def _joined(before: Sequence[Part], message: Message, apart: TextPart) -> Message:
    return replace(message, content=(*before, apart, *message.content))

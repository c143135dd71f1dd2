"""How a chat template wants its messages and tools: found out by trial renderings, then made for each chat.

What the caller wrote is marked as theirs, wherever it stands: keys of schemas and names of tools too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from drivetrain.core.errors import InvalidRequest
from drivetrain.core.messages import ImagePart, Message, TextPart
from drivetrain.core.tools import Tool
from drivetrain.text.answered import answered, calls_of
from drivetrain.text.provenance import traced, written

MARK = "7294016358204917"  # digits survive a change of case
_DUMP = "3860257149025836"
_KEY, _VALUE, _RESULT = "k5093871264", "v6182047395", "r2750916384"
_PRINTED_NAME = f"'name': 'f{MARK}'"
_CALL_ID = "call73951"  # Mistral's templates take only nine letters and digits


class Trial(Protocol):
    def __call__(self, messages: list[dict[str, Any]], tools: list[Any] | None = None) -> str:
        """What the template makes of them, or "" if it fails."""
        ...


@dataclass(frozen=True, slots=True)
class CallShape:
    """`arguments_as_text`: as a string of JSON, and not as an object. `null_content`: if there is no text, its content
    is null, and not an empty string."""

    arguments_as_text: bool
    null_content: bool


@dataclass(frozen=True, slots=True)
class MessageShape:
    wants_parts: bool
    """Content must be a list of parts even without an image."""
    takes_images: bool
    takes_system: bool
    """A system message first is written."""
    takes_several: bool
    """Several of them first are all written."""
    calls: CallShape | None
    """None: the template does not write calls and their results."""
    writes_tools: bool

    def messages(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        if not self.takes_several:
            messages = _one_in_front(messages)
        calls = calls_of(messages) if any(message.tool_calls for message in messages) else ()
        answers = answered(messages) if calls else {}
        shaped = []
        for i, message in enumerate(messages):
            one = {"role": written(message.role), "content": self._content(message)}
            if message.tool_calls:
                one["tool_calls"] = [self._call(call.id, call.name, call.arguments) for call in message.tool_calls]
            if message.reasoning:
                one |= dict.fromkeys(("reasoning_content", "thinking"), traced(message.reasoning))
            if message.role == "tool":
                call = calls[answers[i]] if i in answers else None
                call_id = message.tool_call_id or (call.id if call else "")
                one |= {"tool_call_id": traced(call_id)} if call_id else {}
                one |= {"name": traced(call.name)} if call else {}
            shaped.append(one)
        return shaped

    def _content(self, message: Message) -> Any:
        if message.images and not self.takes_images:
            raise InvalidRequest("the model's chat template has no place for images", param="messages")
        if message.tool_calls and self.calls and self.calls.null_content and not message.text and not message.images:
            return None
        if not message.images and not self.wants_parts:
            return traced(message.text)
        return [
            {"type": written("image")}
            if isinstance(part, ImagePart)
            else {"type": written("text"), "text": traced(part.text)}
            for part in message.content
        ]

    def _call(self, call_id: str, name: str, arguments: str) -> dict[str, Any]:
        as_text = self.calls is None or self.calls.arguments_as_text
        given = traced(arguments) if as_text else _arguments(arguments)
        function = {"name": traced(name), "arguments": given}
        return {"id": traced(call_id), "type": written("function"), "function": function}


def tools_shaped(tools: Sequence[Tool]) -> list[Any] | None:
    return [{**theirs(tool.as_function), "type": written("function")} for tool in tools] or None


def theirs(value: Any) -> Any:
    """A JSON value of the caller's, with all of its text marked as theirs."""
    if isinstance(value, str):
        return traced(value)
    if isinstance(value, Mapping):
        return {traced(key): theirs(item) for key, item in value.items()}
    return [theirs(item) for item in value] if isinstance(value, (list, tuple)) else value


def find_shape(trial: Trial, *, reads_tools: bool) -> MessageShape:
    text = {"type": "text", "text": MARK, _DUMP: _DUMP}
    with_text = trial([_turn("user", [text])])
    with_image = trial([_turn("user", [{"type": "image", _DUMP: _DUMP}, text])])
    reads_parts = MARK in with_text and _DUMP not in with_text
    shows_image = MARK in with_image and _DUMP not in with_image and with_image != with_text
    wants_parts = reads_parts and MARK not in trial([_turn("user", MARK)])

    def said(text: str) -> Any:
        return [{"type": "text", "text": text}] if wants_parts else text

    first, second, user = _turn("system", said(MARK)), _turn("system", said(_KEY)), _turn("user", said("Hi"))
    takes_system = MARK in trial([first, user])
    both = trial([first, second, user]) if takes_system else ""
    tools = [Tool(f"f{MARK}").as_function]
    calls = _call_shape(trial, said)
    told = trial([_turn("user", said("Hi"))], tools) if reads_tools and calls else ""
    offered = MARK in told and _PRINTED_NAME not in told
    return MessageShape(
        wants_parts,
        shows_image,
        takes_system,
        takes_several=MARK in both and _KEY in both,
        calls=calls,
        writes_tools=offered,
    )


def _one_in_front(messages: Sequence[Message]) -> Sequence[Message]:
    """The same with one message of the system in place of several in front."""
    num = next((i for i, message in enumerate(messages) if message.role != "system"), len(messages))
    if num < 2:
        return messages
    content = [part for message in messages[:num] for part in (TextPart("\n\n"), *message.content)]
    return [Message("system", tuple(content[1:])), *messages[num:]]


def _call_shape(trial: Trial, said: Any) -> CallShape | None:
    """The text of arguments is preferred to an object: it is as the model wrote it."""
    text = json.dumps({_KEY: _VALUE})
    for null_content in (False, True):
        for as_text in (True, False):
            function = {"name": f"f{MARK}", "arguments": text if as_text else {_KEY: _VALUE}}
            call = {"id": _CALL_ID, "type": "function", "function": function}
            chat = [
                _turn("user", said("Hi")),
                {**_turn("assistant", None if null_content else said("")), "tool_calls": [call]},
                {**_turn("tool", said(_RESULT)), "tool_call_id": _CALL_ID, "name": function["name"]},
            ]
            if _writes_call(trial(chat), as_text=as_text):
                return CallShape(arguments_as_text=as_text, null_content=null_content)
    return None


def _writes_call(text: str, *, as_text: bool) -> bool:
    """Not if the arguments are JSON inside a string, if Python prints an object, or if a whole message is dumped."""
    is_there = all(part in text for part in (MARK, _KEY, _VALUE, _RESULT)) and (f'"{_KEY}"' in text or not as_text)
    return is_there and not any(sign in text for sign in (f'\\"{_KEY}', f"'{_KEY}'", _PRINTED_NAME, _DUMP))


def _turn(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content, _DUMP: _DUMP}


def _arguments(text: str) -> Any:
    """The object that the text is, or else the text: a model may be shown what it wrote wrongly."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return traced(text)
    return theirs(value) if isinstance(value, dict) else traced(text)

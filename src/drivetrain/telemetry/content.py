"""Prompts and outputs as the conventions write them: JSON of messages with parts, cut to a bound. Only when asked."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from drivetrain.core.answer import ToolCall
from drivetrain.core.messages import ImagePart, Message, TextPart
from drivetrain.core.request import GenerateRequest
from drivetrain.core.results import Choice, FinishReason
from drivetrain.core.tools import Tool

MAX_CHARS = 16_384
"""Of the texts in one attribute."""

MESSAGE_CHARS = 64
"""What a message counts beside its parts, and a part beside its text, so that many empty ones are bounded too."""

MAX_NESTED = 100
"""Brackets in data that is written as such. JSON that is nested too deeply could be read, and not written again."""

CUT = "…"

_CALLED = "tool_call"
"""The conventions' word, in a message, for the reason that our API calls `tool_calls`."""


class _ContentBudget:
    def __init__(self) -> None:
        self.left = MAX_CHARS

    def cut(self, text: str) -> str:
        room = max(0, self.left)
        self.left -= len(text)
        return text if len(text) <= room else text[:room] + CUT

    def data(self, text: str) -> Any:
        """The value of a JSON text, or the text itself if it has to be cut or is no JSON."""
        if len(text) <= self.left and text.count("{") + text.count("[") <= MAX_NESTED:
            with contextlib.suppress(ValueError):
                value = json.loads(text)
                json.dumps(value, allow_nan=False)
                self.left -= len(text)
                return value
        return self.cut(text)


def input_messages(request: GenerateRequest) -> str:
    """The last messages, as many as the bound holds: what is cut is the beginning of the chat."""
    room = _ContentBudget()
    said: list[dict[str, Any]] = []
    for message in reversed(_messages(request)):
        if room.left <= 0:
            break
        room.left -= MESSAGE_CHARS
        said.append({"role": message.role, "parts": _list(_input_parts(message), room)})
    if request.prompt_token_ids is not None:
        ids = room.cut(" ".join(map(str, request.prompt_token_ids[:MAX_CHARS])))
        said.append({"role": "user", "parts": [{"type": "token_ids", "content": ids}]})
    return _json(said[::-1])


def output_messages(choices: Sequence[Choice]) -> str:
    """A call that cannot be used has its arguments as far as they came."""
    room = _ContentBudget()
    return _json(
        [
            {
                "role": "assistant",
                "parts": _list(_output_parts(choice), room),
                "finish_reason": _CALLED if choice.finish_reason is FinishReason.TOOL_CALLS else finish_reason(choice),
            }
            for choice in choices
        ]
    )


def tool_definitions(tools: Sequence[Tool]) -> str:
    room = _ContentBudget()
    return _json(_list((partial(_definition, tool) for tool in tools), room))


def error_text(error: BaseException) -> str:
    return utf8(_ContentBudget().cut(str(error)))


def finish_reason(choice: Choice) -> str:
    """As our API calls it; of a choice that something cut short, `error`."""
    return "error" if choice.finish_reason is None else choice.finish_reason.value


def utf8(text: str) -> str:
    """One text that is not UTF-8 would cost all the spans that are sent with it."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _messages(request: GenerateRequest) -> Sequence[Message]:
    if request.messages is not None:
        return request.messages
    if request.prompt is not None:
        texts = [request.prompt, request.suffix] if request.suffix else [request.prompt]
        return [Message("user", (*(request.images or ()), *map(TextPart, texts)))]
    return []


_Writer = Callable[[_ContentBudget], dict[str, Any]]


def _list(writers: Iterable[_Writer], room: _ContentBudget) -> list[dict[str, Any]]:
    """As many as there is room for; the last text may be cut."""
    found: list[dict[str, Any]] = []
    for write in writers:
        if room.left <= 0:
            break
        room.left -= MESSAGE_CHARS
        found.append(write(room))
    return found


def _input_parts(message: Message) -> Iterator[_Writer]:
    if message.reasoning:
        yield partial(_text, "reasoning", message.reasoning)
    if message.role == "tool":
        yield partial(_response, message)
    for part in message.content:
        if isinstance(part, ImagePart):
            yield partial(_image, part)
        elif message.role != "tool" and (part.text or not message.tool_calls):
            yield partial(_text, "text", part.text)
    yield from (partial(_call, call) for call in message.tool_calls)


def _output_parts(choice: Choice) -> Iterator[_Writer]:
    message = choice.message
    if message is None:
        yield partial(_text, "text", choice.text)
        return
    if message.reasoning:
        yield partial(_text, "reasoning", message.reasoning)
    if message.content:
        yield partial(_text, "text", message.content)
    yield from (partial(_call, call) for call in message.tool_calls)


def _text(kind: str, text: str, room: _ContentBudget) -> dict[str, Any]:
    return {"type": kind, "content": room.cut(text)}


def _call(call: ToolCall, room: _ContentBudget) -> dict[str, Any]:
    named = {"type": "tool_call", "id": room.cut(call.id) or None, "name": room.cut(call.name)}
    return named | {"arguments": room.data(call.arguments)}


def _response(message: Message, room: _ContentBudget) -> dict[str, Any]:
    return {
        "type": "tool_call_response",
        "id": room.cut(message.tool_call_id) or None,
        "response": room.cut(message.text),
    }


def _definition(tool: Tool, room: _ContentBudget) -> dict[str, Any]:
    described = {"description": room.cut(tool.description)} if tool.description else {}
    return {"type": "function", "name": tool.name, **described, "parameters": room.data(tool.parameters)}


def _image(image: ImagePart, room: _ContentBudget) -> dict[str, str]:
    """Its address, or only that it was there: bytes and paths say nothing here."""
    if image.url is not None and image.url[:6].lower().startswith(("http:", "https:")):
        return {"type": "uri", "modality": "image", "uri": room.cut(image.url)}
    return {"type": "image"}


def _json(value: Any) -> str:
    return utf8(json.dumps(value, ensure_ascii=False, separators=(",", ":")))

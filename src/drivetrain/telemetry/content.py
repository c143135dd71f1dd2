"""Prompts and outputs as the conventions write them: JSON of messages with parts, cut to a bound. Only when asked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from drivetrain.core.messages import ImagePart, Message, Part, TextPart
from drivetrain.core.request import GenerateRequest
from drivetrain.core.results import Choice

MAX_CHARS = 16_384
"""Of the texts in one attribute."""

MESSAGE_CHARS = 64
"""What a message counts beside its parts, and a part beside its text, so that many empty ones are bounded too."""

CUT = "…"


class _ContentBudget:
    def __init__(self) -> None:
        self.left = MAX_CHARS

    def cut(self, text: str) -> str:
        room = max(0, self.left)
        self.left -= len(text)
        return text if len(text) <= room else text[:room] + CUT


def input_messages(request: GenerateRequest) -> str:
    """The last messages, as many as the bound holds: what is cut is the beginning of the chat."""
    room = _ContentBudget()
    said: list[dict[str, Any]] = []
    for message in reversed(_messages(request)):
        if room.left <= 0:
            break
        room.left -= MESSAGE_CHARS
        said.append({"role": message.role, "parts": _parts(message.content, room)})
    if request.prompt_token_ids is not None:
        ids = room.cut(" ".join(map(str, request.prompt_token_ids[:MAX_CHARS])))
        said.append({"role": "user", "parts": [{"type": "token_ids", "content": ids}]})
    return _json(said[::-1])


def output_messages(choices: Sequence[Choice]) -> str:
    room = _ContentBudget()
    return _json(
        [
            {
                "role": "assistant",
                "parts": [{"type": "text", "content": room.cut(choice.text)}],
                "finish_reason": finish_reason(choice),
            }
            for choice in choices
        ]
    )


def error_text(error: BaseException) -> str:
    return utf8(_ContentBudget().cut(str(error)))


def finish_reason(choice: Choice) -> str:
    """Of a choice that something cut short, `error`."""
    return "error" if choice.finish_reason is None else choice.finish_reason.value


def utf8(text: str) -> str:
    """One text that is not UTF-8 would cost all the spans that are sent with it."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _messages(request: GenerateRequest) -> Sequence[Message]:
    if request.messages is not None:
        return request.messages
    if request.prompt is not None:
        return [Message("user", (*(request.images or ()), TextPart(request.prompt)))]
    return []


def _parts(parts: Sequence[Part], room: _ContentBudget) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    for part in parts:
        if room.left <= 0:
            break
        room.left -= MESSAGE_CHARS
        found.append(_part(part, room))
    return found


def _part(part: Part, room: _ContentBudget) -> dict[str, str]:
    if isinstance(part, TextPart):
        return {"type": "text", "content": room.cut(part.text)}
    return _image(part, room)


def _image(image: ImagePart, room: _ContentBudget) -> dict[str, str]:
    """Its address, or only that it was there: bytes and paths say nothing here."""
    if image.url is not None and image.url[:6].lower().startswith(("http:", "https:")):
        return {"type": "uri", "modality": "image", "uri": room.cut(image.url)}
    return {"type": "image"}


def _json(value: Any) -> str:
    return utf8(json.dumps(value, ensure_ascii=False, separators=(",", ":")))

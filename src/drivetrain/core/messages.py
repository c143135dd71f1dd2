"""What a caller says: chat messages with text and images, before anything is rendered or fetched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from drivetrain.core.errors import InvalidRequest

ROLES = frozenset({"system", "user", "assistant", "tool"})


@dataclass(frozen=True, slots=True)
class TextPart:
    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image by exactly one of: a data URI or URL, a path on this machine (Python callers only), raw bytes."""

    url: str | None = None
    path: str | None = None
    data: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if sum(x is not None for x in (self.url, self.path, self.data)) != 1:
            raise InvalidRequest("an image is given by exactly one of url, path and data", param="messages")


Part = TextPart | ImagePart


@dataclass(frozen=True, slots=True)
class Message:
    role: str
    content: tuple[Part, ...]

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content if isinstance(part, TextPart))

    @property
    def images(self) -> tuple[ImagePart, ...]:
        return tuple(part for part in self.content if isinstance(part, ImagePart))


def parse_messages(raw: object) -> tuple[Message, ...]:
    """Read the OpenAI shape (or `Message` objects) into messages; anything else is refused by its place."""
    if isinstance(raw, (str, bytes, Mapping)) or not isinstance(raw, Sequence):
        raise InvalidRequest("messages must be a list of objects with role and content", param="messages")
    if not raw:
        raise InvalidRequest("messages is empty: send at least one", param="messages")
    return tuple(_message(item, f"messages[{i}]") for i, item in enumerate(raw))


def _message(raw: object, where: str) -> Message:
    if isinstance(raw, Message):
        return raw
    if not isinstance(raw, Mapping):
        raise InvalidRequest(f"{where} must be an object with role and content", param=where)
    role = raw.get("role")
    if role == "developer":
        role = "system"
    if not isinstance(role, str) or role not in ROLES:
        known = ", ".join(sorted(ROLES))
        raise InvalidRequest(f"{where}.role is {_short(role)}; it must be one of {known}", param=f"{where}.role")
    for later in ("tool_calls", "function_call"):
        if raw.get(later):
            raise InvalidRequest(f"{where}.{later} is not supported yet", param=f"{where}.{later}")
    return Message(role, _content(raw.get("content"), f"{where}.content"))


def _content(raw: object, where: str) -> tuple[Part, ...]:
    if isinstance(raw, str):
        _check_text(raw, where)
        return (TextPart(raw),)
    if isinstance(raw, Sequence) and not isinstance(raw, (bytes, bytearray)) and raw:
        return tuple(_part(item, f"{where}[{i}]") for i, item in enumerate(raw))
    raise InvalidRequest(f"{where} must be a string or a list of parts", param=where)


def _part(raw: object, where: str) -> Part:
    if isinstance(raw, (TextPart, ImagePart)):
        return raw
    if not isinstance(raw, Mapping):
        raise InvalidRequest(f"{where} must be an object with a type", param=where)
    kind = raw.get("type")
    if kind == "text":
        text = raw.get("text")
        if not isinstance(text, str):
            raise InvalidRequest(f"{where}.text must be a string", param=f"{where}.text")
        _check_text(text, f"{where}.text")
        return TextPart(text)
    if kind == "image_url":
        return ImagePart(url=_image_url(raw.get("image_url"), f"{where}.image_url"))
    raise InvalidRequest(f"{where}.type is {_short(kind)}; it must be text or image_url", param=f"{where}.type")


def _image_url(raw: Any, where: str) -> str:
    url = raw.get("url") if isinstance(raw, Mapping) else None
    if not isinstance(url, str) or not url:
        raise InvalidRequest(f"{where} must be an object with a url", param=where)
    return url


def _check_text(text: str, where: str) -> None:
    """A lone surrogate cannot be encoded as UTF-8, so no tokenizer can take it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{where} holds a lone surrogate, which is not text", param=where) from None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

"""What a caller says: chat messages with text and images, before anything is rendered or fetched."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from drivetrain.core.errors import InvalidRequest, Unsupported
from drivetrain.core.kinds import Kind, Schema, check_text, shown

ROLES = frozenset({"system", "user", "assistant", "tool"})
_NOT_YET = ("tool_calls", "function_call")


@dataclass(frozen=True, slots=True)
class TextPart:
    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image, given by exactly one of: a data URI or URL, a path on this machine (Python callers only), raw bytes."""

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


def parse_messages(raw: object, leave_out: Callable[[str], None] | None = None) -> tuple[Message, ...]:
    """Read the OpenAI shape (or `Message` objects) into messages; errors name the place of anything else.

    `leave_out` gets the place of each key that is set but not supported. Without it, keys that would change the prompt
    are refused, and other keys are ignored.
    """
    if isinstance(raw, (str, bytes, Mapping)) or not isinstance(raw, Sequence):
        raise InvalidRequest("messages must be a list of objects with role and content", param="messages")
    if not raw:
        raise InvalidRequest("messages is empty: send at least one", param="messages")
    refused = _NOT_YET if leave_out is None else ()
    messages = tuple(_message(item, f"messages[{i}]", refused) for i, item in enumerate(raw))
    if leave_out is not None:
        for i, item in enumerate(raw):
            for place in _unhonoured(item, f"messages[{i}]"):
                leave_out(place)
    return messages


def _message(raw: object, where: str, refused: Sequence[str]) -> Message:
    if isinstance(raw, Message):
        return raw
    if not isinstance(raw, Mapping):
        raise InvalidRequest(f"{where} must be an object with role and content", param=where)
    role = raw.get("role")
    if role == "developer":
        role = "system"
    if not isinstance(role, str) or role not in ROLES:
        known = ", ".join(sorted(ROLES))
        raise InvalidRequest(f"{where}.role is {shown(role)}; it must be one of {known}", param=f"{where}.role")
    for later in refused:
        if raw.get(later):
            raise Unsupported(f"{where}.{later} is not supported yet; leave it out", param=f"{where}.{later}")
    return Message(role, _answer(raw, where) if role == "assistant" else _content(raw, where, ("text", "image_url")))


def _answer(raw: Mapping[str, Any], where: str) -> tuple[Part, ...]:
    """As clients send an answer back: it may have no content, and a refusal counts as the assistant's text."""
    content, refusal = raw.get("content"), raw.get("refusal")
    parts: tuple[Part, ...] = ()
    if content not in (None, [], ()):
        parts = _content(raw, where, ("text", "refusal", "image_url"))
    if refusal not in (None, ""):
        parts += (_text(refusal, f"{where}.refusal"),)
    return parts or (TextPart(""),)


def _content(message: Mapping[str, Any], where: str, kinds: Sequence[str]) -> tuple[Part, ...]:
    raw, where = message.get("content"), f"{where}.content"
    if isinstance(raw, str):
        return (_text(raw, where),)
    if isinstance(raw, Sequence) and not isinstance(raw, (bytes, bytearray)) and raw:
        return tuple(_part(item, f"{where}[{i}]", kinds) for i, item in enumerate(raw))
    raise InvalidRequest(f"{where} must be a string or a list of parts, not {shown(raw)}", param=where)


def _part(raw: object, where: str, kinds: Sequence[str]) -> Part:
    if isinstance(raw, (TextPart, ImagePart)):
        return raw
    if not isinstance(raw, Mapping):
        raise InvalidRequest(f"{where} must be an object with a type", param=where)
    kind = raw.get("type")
    if kind not in kinds:
        known = f"{', '.join(kinds[:-1])} or {kinds[-1]}"
        raise InvalidRequest(f"{where}.type is {shown(kind)}; it must be {known}", param=f"{where}.type")
    if kind == "image_url":
        return ImagePart(url=_image_url(raw.get("image_url"), f"{where}.image_url"))
    return _text(raw.get(kind), f"{where}.{kind}")


def _text(raw: object, where: str) -> TextPart:
    if not isinstance(raw, str):
        raise InvalidRequest(f"{where} must be a string, not {shown(raw)}", param=where)
    check_text(where, raw)
    return TextPart(raw)


def _image_url(raw: Any, where: str) -> str:
    url = raw.get("url") if isinstance(raw, Mapping) else None
    if not isinstance(url, str) or not url:
        raise InvalidRequest(f"{where} must be an object with a url", param=where)
    check_text(where, url)
    return url


def _unhonoured(raw: Any, where: str) -> Iterator[str]:
    """The places of keys in a valid message that are set but not supported."""
    if isinstance(raw, Message):
        return
    yield from _other_keys({"role", "content", *(["refusal"] if raw["role"] == "assistant" else [])}, raw, where)
    content = raw.get("content")
    for i, part in enumerate(() if isinstance(content, str) else content or ()):
        if isinstance(part, Mapping):
            place, kind = f"{where}.content[{i}]", part["type"]
            yield from _other_keys({"type", kind}, part, place)
            yield from _other_keys({"url"}, part[kind], f"{place}.{kind}") if kind == "image_url" else ()


def _other_keys(known: Set[str], raw: Mapping[str, Any], where: str) -> Iterator[str]:
    return (f"{where}.{key}" for key, value in raw.items() if value and key not in known)


def _object(required: Sequence[str], **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required)}


_STRING: Schema = {"type": "string"}
_NULL: Schema = {"type": "null"}
_NOTHING: Schema = {"enum": [None, False, 0, "", [], {}]}
_TEXT_PART = _object(["type", "text"], type={"const": "text"}, text=_STRING)
_REFUSAL_PART = _object(["type", "refusal"], type={"const": "refusal"}, refusal=_STRING)
_IMAGE_URL = _object(["url"], url={"type": "string", "minLength": 1})
_IMAGE_PART = _object(["type", "image_url"], type={"const": "image_url"}, image_url=_IMAGE_URL)
_PARTS: Schema = {"type": "array", "minItems": 1, "items": {"anyOf": [_TEXT_PART, _IMAGE_PART]}}
_ANSWER_PARTS: Schema = {"type": "array", "items": {"anyOf": [_TEXT_PART, _REFUSAL_PART, _IMAGE_PART]}}

_MESSAGE = _object(
    ["role", "content"],
    role={"enum": ["system", "developer", "user", "tool"]},
    content={"anyOf": [_STRING, _PARTS]},
    **dict.fromkeys(_NOT_YET, _NOTHING),
)
_ANSWER = _object(
    ["role"],
    role={"const": "assistant"},
    content={"anyOf": [_STRING, _ANSWER_PARTS, _NULL]},
    refusal={"anyOf": [_STRING, _NULL]},
    **dict.fromkeys(_NOT_YET, _NOTHING),
)
"""Other keys are ignored."""


class Messages(Kind):
    takes = "a list of objects with role and content"

    def judge(self, name: str, value: Any) -> tuple[Message, ...]:
        return parse_messages(value)

    def judge_leniently(self, name: str, value: Any, leave_out: Callable[[str], None]) -> tuple[Message, ...]:
        return parse_messages(value, leave_out)

    def schema(self) -> Schema:
        return {"type": "array", "minItems": 1, "items": {"anyOf": [_MESSAGE, _ANSWER]}}


class Images(Kind):
    takes = "a list of paths, URLs, data URIs or bytes"

    def judge(self, name: str, value: Any) -> tuple[ImagePart, ...]:
        if not isinstance(value, (list, tuple)):
            raise self.refuse(name, value)
        return tuple(_image(f"{name}[{i}]", item) for i, item in enumerate(value))

    def schema(self) -> Schema:
        return {"type": "array", "items": {"type": "string"}}


def _image(name: str, value: Any) -> ImagePart:
    if isinstance(value, ImagePart):
        return value
    if isinstance(value, bytes):
        return ImagePart(data=value)
    if isinstance(value, str):
        return ImagePart(url=value) if value.startswith(("data:", "http:", "https:")) else ImagePart(path=value)
    if hasattr(value, "__fspath__"):
        return ImagePart(path=value.__fspath__())
    raise InvalidRequest(f"{name} must be a path, a URL, a data URI or bytes", param=name)

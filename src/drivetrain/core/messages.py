"""What a caller says: chat messages with text and images, before anything is rendered or fetched."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from drivetrain.core.answer import ToolCall
from drivetrain.core.earlier_calls import CALLS, optional_text, parse_calls, unknown_keys
from drivetrain.core.errors import InvalidRequest, Unsupported
from drivetrain.core.kinds import Kind, Schema, check_text, shown

ROLES = frozenset({"system", "user", "assistant", "tool"})
_DEPRECATED = ("function_call",)
_NOT_OTHERS = ("tool_calls", *_DEPRECATED)
"""Only an assistant's message has calls."""
_REASONING = ("reasoning_content", "reasoning")
"""Clients have both names. The first that says something counts."""


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
    """`tool_calls` and `reasoning` are an assistant's; `tool_call_id` says which call a tool's message answers."""

    role: str
    content: tuple[Part, ...]
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    reasoning: str = ""

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content if isinstance(part, TextPart))

    @property
    def num_chars(self) -> int:
        """Of all its text."""
        calls = sum(len(call.id) + len(call.name) + len(call.arguments) for call in self.tool_calls)
        return len(self.text) + len(self.reasoning) + len(self.tool_call_id) + calls

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
    messages = tuple(_message(item, f"messages[{i}]", leave_out is None) for i, item in enumerate(raw))
    if leave_out is not None:
        for i, item in enumerate(raw):
            for place in _unhonoured(item, f"messages[{i}]"):
                leave_out(place)
    return messages


def check_call_ids(messages: Sequence[Message]) -> None:
    """Raise `InvalidRequest` for a tool's message that answers a call which no earlier message has."""
    known: set[str] = set()
    for i, message in enumerate(messages):
        known.update(call.id for call in message.tool_calls)
        if message.tool_call_id and message.tool_call_id not in known:
            where = f"messages[{i}].tool_call_id"
            what = f"{where} is {shown(message.tool_call_id)}, which is the id of no call in an earlier message"
            raise InvalidRequest(what, param=where)


def _message(raw: object, where: str, refuses: bool) -> Message:
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
    for key in _not_supported(role) if refuses else ():
        if raw.get(key):
            raise Unsupported(f"{where}.{key} is not supported {_instead(key)}", param=f"{where}.{key}")
    if role == "assistant":
        calls = parse_calls(raw.get("tool_calls"), f"{where}.tool_calls")
        reasoning = [optional_text(raw, key, where) for key in _REASONING]
        return Message(role, _answer(raw, where), calls, reasoning=next(filter(None, reasoning), ""))
    answered = optional_text(raw, "tool_call_id", where) if role == "tool" else ""
    return Message(role, _content(raw, where, ("text", "image_url")), tool_call_id=answered)


def _not_supported(role: str) -> Sequence[str]:
    return _DEPRECATED if role == "assistant" else _NOT_OTHERS


def _instead(key: str) -> str:
    return "in a message that is not the assistant's" if key == "tool_calls" else "any more; send tool_calls instead"


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
    yield from _other_keys({"role", "content", *_OWN_KEYS.get(raw["role"], ())}, raw, where)
    if raw["role"] == "assistant":
        yield from unknown_keys(raw.get("tool_calls"), f"{where}.tool_calls")
    content = raw.get("content")
    for i, part in enumerate(() if isinstance(content, str) else content or ()):
        if isinstance(part, Mapping):
            place, kind = f"{where}.content[{i}]", part["type"]
            yield from _other_keys({"type", kind}, part, place)
            yield from _other_keys({"url"}, part[kind], f"{place}.{kind}") if kind == "image_url" else ()


def _other_keys(known: Set[str], raw: Mapping[str, Any], where: str) -> Iterator[str]:
    return (f"{where}.{key}" for key, value in raw.items() if value and key not in known)


_OWN_KEYS: Mapping[str, Sequence[str]] = {
    "assistant": ("refusal", "tool_calls", *_REASONING),
    "tool": ("tool_call_id",),
}


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

_OPTIONAL_TEXT: Schema = {"anyOf": [_STRING, _NULL]}
_MESSAGE = _object(
    ["role", "content"],
    role={"enum": ["system", "developer", "user"]},
    content={"anyOf": [_STRING, _PARTS]},
    **dict.fromkeys(_NOT_OTHERS, _NOTHING),
)
_RESULT = _object(
    ["role", "content"],
    role={"const": "tool"},
    content={"anyOf": [_STRING, _PARTS]},
    tool_call_id=_OPTIONAL_TEXT,
    **dict.fromkeys(_NOT_OTHERS, _NOTHING),
)
_ANSWER = _object(
    ["role"],
    role={"const": "assistant"},
    content={"anyOf": [_STRING, _ANSWER_PARTS, _NULL]},
    tool_calls=CALLS,
    **dict.fromkeys(("refusal", *_REASONING), _OPTIONAL_TEXT),
    **dict.fromkeys(_DEPRECATED, _NOTHING),
)
"""Other keys are ignored."""


class Messages(Kind):
    takes = "a list of objects with role and content"

    def judge(self, name: str, value: Any) -> tuple[Message, ...]:
        return parse_messages(value)

    def judge_leniently(self, name: str, value: Any, leave_out: Callable[[str], None]) -> tuple[Message, ...]:
        return parse_messages(value, leave_out)

    def schema(self) -> Schema:
        return {"type": "array", "minItems": 1, "items": {"anyOf": [_MESSAGE, _ANSWER, _RESULT]}}


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

"""The calls that earlier messages of a chat made, as clients send them back in OpenAI's shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from drivetrain.core.answer import ToolCall
from drivetrain.core.constraint import schema_source
from drivetrain.core.errors import InvalidRequest
from drivetrain.core.kinds import Schema, check_text, shown

MAX_CALLS = 128
"""Of one message."""

NO_ARGUMENTS = "{}"


def parse_calls(raw: object, where: str) -> tuple[ToolCall, ...]:
    """The arguments stay the text that they are, JSON or not: a model may be shown what it wrote wrongly."""
    if raw is None:
        return ()
    if not isinstance(raw, (list, tuple)):
        raise InvalidRequest(f"{where} must be a list of calls, not {shown(raw)}", param=where)
    if len(raw) > MAX_CALLS:
        raise InvalidRequest(f"{where} has {len(raw):,} calls; the limit is {MAX_CALLS}", param=where)
    return tuple(_call(item, i, f"{where}[{i}]") for i, item in enumerate(raw))


def optional_text(raw: Mapping[str, Any], key: str, where: str) -> str:
    """Nothing if it is null or not there."""
    value, where = raw.get(key), f"{where}.{key}"
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidRequest(f"{where} must be a string, not {shown(value)}", param=where)
    check_text(where, value)
    return value


def unknown_keys(raw: object, where: str) -> Iterator[str]:
    """The places of keys in a valid list of calls that mean nothing here."""
    for i, call in enumerate(raw if isinstance(raw, (list, tuple)) else ()):
        if isinstance(call, Mapping):
            place, function = f"{where}[{i}]", call["function"]
            yield from (f"{place}.{key}" for key in call if call[key] and key not in _CALL_KEYS)
            yield from (f"{place}.function.{key}" for key in function if function[key] and key not in _FUNCTION_KEYS)


def _call(raw: object, index: int, where: str) -> ToolCall:
    if isinstance(raw, ToolCall):
        return raw
    if not isinstance(raw, Mapping):
        raise InvalidRequest(f"{where} must be an object with a function", param=where)
    kind = raw.get("type", "function")
    if kind != "function":
        raise InvalidRequest(f"{where}.type is {shown(kind)}; it must be function", param=f"{where}.type")
    function, place = raw.get("function"), f"{where}.function"
    if not isinstance(function, Mapping):
        raise InvalidRequest(f"{place} must be an object with a name and arguments", param=place)
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"{place}.name must be a string that is not empty", param=f"{place}.name")
    check_text(f"{place}.name", name)
    return ToolCall(index, name, _arguments(function, place), id=optional_text(raw, "id", where))


def _arguments(function: Mapping[str, Any], where: str) -> str:
    if isinstance(function.get("arguments"), Mapping):
        return schema_source(function["arguments"], f"{where}.arguments", "a string of JSON, or an object")
    return optional_text(function, "arguments", where) or NO_ARGUMENTS


_CALL_KEYS = frozenset({"id", "type", "function", "index"})
"""`index` is what the deltas of a stream have: clients that join them send it back."""
_FUNCTION_KEYS = frozenset({"name", "arguments"})

_FUNCTION: Schema = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "arguments": {"anyOf": [{"type": "string"}, {"type": "object"}, {"type": "null"}]},
    },
    "required": ["name"],
}
CALLS: Schema = {
    "anyOf": [
        {
            "type": "array",
            "maxItems": MAX_CALLS,
            "items": {
                "type": "object",
                "properties": {
                    "id": {"type": ["string", "null"]},
                    "type": {"const": "function"},
                    "function": _FUNCTION,
                },
                "required": ["function"],
            },
        },
        {"type": "null"},
    ]
}

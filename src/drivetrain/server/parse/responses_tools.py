"""Tools and their choice as `/v1/responses` has them: flat, without an object `function`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from drivetrain.core.errors import InvalidRequest
from drivetrain.core.kinds import Kind, Schema
from drivetrain.core.tools import Tool, ToolChoice, ToolChoices, ToolMode, Tools
from drivetrain.server.errors import moved

_TOOLS, _CHOICES = Tools(), ToolChoices()


class FlatTools(Kind):
    takes = "a list of tools"

    def judge(self, name: str, value: Any) -> tuple[Tool, ...]:
        nested = _nested_all(name, value)
        with _flat_places():
            return _TOOLS.judge(name, nested)

    def judge_leniently(self, name: str, value: Any, leave_out: Callable[[str], None]) -> tuple[Tool, ...] | None:
        nested = _nested_all(name, value)
        with _flat_places():
            return _TOOLS.judge_leniently(name, nested, lambda place: leave_out(_flat(place)))

    def schema(self) -> Schema:
        item = _TOOLS.schema()["items"]["properties"]
        function = item["function"]
        properties = {"type": item["type"], **function["properties"]}
        flat = {"type": "object", "properties": properties, "required": ["type", "name"], "additionalProperties": False}
        return {"type": "array", "items": flat}


class FlatToolChoice(Kind):
    takes = "auto, none, required, or an object that names a function"

    def judge(self, name: str, value: Any) -> ToolChoice:
        nested = _nested_choice(name, value)
        with _flat_places():
            return _CHOICES.judge(name, nested)

    def judge_leniently(self, name: str, value: Any, leave_out: Callable[[str], None]) -> ToolChoice | None:
        nested = _nested_choice(name, value)
        with _flat_places():
            return _CHOICES.judge_leniently(name, nested, lambda place: leave_out(_flat(place)))

    def schema(self) -> Schema:
        named = {
            "type": "object",
            "properties": {"type": {"const": "function"}, "name": {"type": "string", "minLength": 1}},
            "required": ["name"],
            "additionalProperties": False,
        }
        allowed = {
            "type": "object",
            "properties": {
                "type": {"const": "allowed_tools"},
                "mode": {"enum": ["auto", "required"]},
                "tools": {"type": "array", "items": named, "minItems": 1},
            },
            "required": ["type", "tools"],
            "additionalProperties": False,
        }
        return {"anyOf": [{"type": "string", "enum": [*map(str, ToolMode)]}, named, allowed]}


def flat_tool(tool: Tool) -> dict[str, Any]:
    parameters = json.loads(tool.parameters)
    told = {"name": tool.name, "description": tool.description or None}
    return {"type": "function", **told, "parameters": parameters, "strict": tool.strict}


def flat_choice(choice: ToolChoice | None) -> Any:
    if choice is None or not choice.names:
        return str(choice.mode) if choice is not None else "auto"
    if choice.is_named:
        return {"type": "function", "name": choice.names[0]}
    named = [{"type": "function", "name": name} for name in choice.names]
    return {"type": "allowed_tools", "mode": str(choice.mode), "tools": named}


def _nested_all(name: str, value: Any) -> Any:
    items = isinstance(value, (list, tuple))
    return [_nested(f"{name}[{i}]", item) for i, item in enumerate(value)] if items else value


def _nested(where: str, value: Any) -> Any:
    """A flat tool in the shape that chats have."""
    if not isinstance(value, Mapping) or value.get("type", "function") != "function":
        return value
    if "function" in value:
        raise _nested_form(where, "function", "the name and the parameters")
    return {"type": "function", "function": {key: item for key, item in value.items() if key != "type"}}


def _nested_choice(name: str, value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    if "allowed_tools" in value:
        raise _nested_form(name, "allowed_tools", "the mode and the tools")
    tools = value.get("tools")
    listed = {"tools": _nested_all(f"{name}.tools", tools)} if isinstance(tools, list) else {}
    return {**_nested(name, value), **listed}


def _nested_form(where: str, key: str, what: str) -> InvalidRequest:
    message = f"{where}.{key} is the form of /v1/chat/completions; here {what} stand in the object itself"
    return InvalidRequest(message, param=f"{where}.{key}")


@contextmanager
def _flat_places() -> Iterator[None]:
    """Errors inside name the places that the client knows."""
    try:
        yield
    except InvalidRequest as exc:
        raise moved(exc, _flat(exc.param or "")) from None


def _flat(place: str) -> str:
    return re.sub(r"\.(function|allowed_tools)(?=\.|\[|$)", "", place)

"""The tools that a model may call, and what a caller says of whether and which."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from drivetrain.core.constraint import schema_source
from drivetrain.core.errors import InvalidRequest, Unsupported
from drivetrain.core.kinds import Kind, LeaveOut, Schema, String, check_text, refuse_unknown, shown

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
"""Nothing in a name can be part of a marker."""

NO_PARAMETERS = '{"type": "object", "properties": {}, "additionalProperties": false}'


@dataclass(frozen=True, slots=True)
class Tool:
    """`parameters` is the schema of the arguments, as JSON text. The arguments of a `strict` tool always fit it."""

    name: str
    description: str = ""
    parameters: str = NO_PARAMETERS
    strict: bool = False

    @property
    def as_function(self) -> dict[str, Any]:
        """In OpenAI's shape, as chat templates read it."""
        function = {"name": self.name, "description": self.description, "parameters": json.loads(self.parameters)}
        return {"type": "function", "function": function}


class ToolMode(StrEnum):
    AUTO = "auto"
    """The model decides."""

    NONE = "none"
    """The model is not told of any tool."""

    REQUIRED = "required"
    """The answer is one call or several."""


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """`names` are the tools that may be called; empty: all. A tool that must be called is `REQUIRED` with its name."""

    mode: ToolMode = ToolMode.AUTO
    names: tuple[str, ...] = ()

    @property
    def is_named(self) -> bool:
        """One call of one tool, and nothing else."""
        return self.mode is ToolMode.REQUIRED and len(self.names) == 1


class Tools(Kind):
    takes = "a list of tools"

    def judge(self, name: str, value: Any) -> tuple[Tool, ...]:
        return self._judged(name, value, None)

    def judge_leniently(self, name: str, value: Any, leave_out: Callable[[str], None]) -> tuple[Tool, ...] | None:
        """Tools that are no functions are left out, and unknown keys; None if there are no other tools."""
        return self._judged(name, value, leave_out) or None

    def _judged(self, name: str, value: Any, leave_out: LeaveOut) -> tuple[Tool, ...]:
        if not isinstance(value, (list, tuple)):
            raise self.refuse(name, value)
        placed = self.judge_placed([(f"{name}[{i}]", item) for i, item in enumerate(value)], leave_out)
        return tuple(placed.values())

    def judge_placed(self, items: Iterable[tuple[str, Any]], leave_out: LeaveOut) -> dict[str, Tool]:
        """By the place where the caller has put each. A strict judge has no `leave_out`."""
        tools: dict[str, Tool] = {}
        names: set[str] = set()
        for place, item in items:
            try:
                tool = _tool(place, item, leave_out)
            except Unsupported:
                if leave_out is None:
                    raise
                leave_out(place)
                continue
            if tool.name in names:
                place += ".function.name"
                raise InvalidRequest(f"{place} is {tool.name}, which an earlier tool is named too", param=place)
            names.add(tool.name)
            tools[place] = tool
        return tools

    def schema(self) -> Schema:
        return {"type": "array", "items": _TOOL}


class ToolChoices(Kind):
    takes = "auto, none, required, or an object that names a function"

    def judge(self, name: str, value: Any) -> ToolChoice:
        return self._judged(name, value, None)

    def judge_leniently(self, name: str, value: Any, leave_out: Callable[[str], None]) -> ToolChoice | None:
        """Unknown keys are left out, and a choice of an unknown type."""
        try:
            return self._judged(name, value, leave_out)
        except Unsupported as exc:
            leave_out(exc.param or name)
            return None

    def _judged(self, name: str, value: Any, leave_out: LeaveOut) -> ToolChoice:
        if isinstance(value, ToolChoice):
            return value
        if isinstance(value, str) and value in tuple(ToolMode):
            return ToolChoice(ToolMode(value))
        if not isinstance(value, Mapping):
            raise self.refuse(name, value)
        kind = value.get("type", "function")
        if kind == "function":
            return ToolChoice(ToolMode.REQUIRED, (_named(value, name, leave_out),))
        if kind == "allowed_tools":
            return _allowed(value, name, leave_out)
        raise Unsupported(f"{name}.type is {shown(kind)}; it must be function or allowed_tools", param=f"{name}.type")

    def schema(self) -> Schema:
        named = _object(["function"], type={"const": "function"}, function=_NAMED)
        allowed: Schema = {
            "mode": {"enum": ["auto", "required"]},
            "tools": {"type": "array", "items": named, "minItems": 1},
        }
        kind: Schema = {"const": "allowed_tools"}
        nested = _object(["type", "allowed_tools"], type=kind, allowed_tools=_object(["tools"], **allowed))
        flat = _object(["type", "tools"], type=kind, **allowed)
        return {"anyOf": [{"type": "string", "enum": [*map(str, ToolMode)]}, named, nested, flat]}


class JsonObject(Kind):
    """An object of any JSON values."""

    takes = "an object"

    def judge(self, name: str, value: Any) -> Mapping[str, Any]:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise self.refuse(name, value)
        schema_source(dict(value), name, "an object of JSON values")
        return dict(value)

    def schema(self) -> Schema:
        return {"type": "object"}


def _tool(where: str, value: Any, leave_out: LeaveOut) -> Tool:
    if isinstance(value, Tool):
        checked_name(f"{where}.name", value.name)
        check_text(f"{where}.description", value.description)
        return value
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{where} must be an object with a function", param=where)
    kind = value.get("type", "function")
    if kind != "function":
        raise Unsupported(f"{where}.type is {shown(kind)}; only functions can be called", param=f"{where}.type")
    function = value.get("function")
    if not isinstance(function, Mapping):
        raise InvalidRequest(f"{where}.function must be an object with a name", param=f"{where}.function")
    refuse_unknown(where, value, _ITEM_KEYS, leave_out)
    where += ".function"
    refuse_unknown(where, function, _FUNCTION_KEYS, leave_out)
    name, description = checked_name(f"{where}.name", function.get("name")), function.get("description")
    text = "" if description is None else _TEXT.judge(f"{where}.description", description)
    strict = function.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise InvalidRequest(f"{where}.strict must be true or false, not {shown(strict)}", param=f"{where}.strict")
    return Tool(name, text, _parameters(f"{where}.parameters", function.get("parameters")), bool(strict))


def _parameters(where: str, value: Any) -> str:
    if value is None or value == {}:
        return NO_PARAMETERS if value is None else '{"type": "object"}'
    if not isinstance(value, Mapping) or value.get("type", "object") != "object":
        raise InvalidRequest(f"{where} must be the schema of an object, not {shown(value)}", param=where)
    return schema_source(value, where, "a JSON schema, which is an object")


def checked_name(where: str, name: Any) -> str:
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        what = "it must be up to 128 letters, digits, _, - and ., and not begin with - or ."
        raise InvalidRequest(f"{where} is {shown(name)}; {what}", param=where)
    return name


def _named(value: Any, where: str, leave_out: LeaveOut) -> str:
    function = value.get("function") if isinstance(value, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if function is None or not isinstance(name, str) or not name:
        raise InvalidRequest(f"{where}.function.name is missing", param=f"{where}.function.name")
    refuse_unknown(where, value, _ITEM_KEYS, leave_out)
    refuse_unknown(f"{where}.function", function, ("name",), leave_out)
    return name


def _allowed(choice: Mapping[str, Any], where: str, leave_out: LeaveOut) -> ToolChoice:
    """`mode` and `tools` stand in an object of their own, or beside the type."""
    value: Any = choice
    fields = ["type", "mode", "tools"]
    if "allowed_tools" in choice:
        refuse_unknown(where, choice, ["type", "allowed_tools"], leave_out)
        value, where, fields = choice["allowed_tools"], f"{where}.allowed_tools", ["mode", "tools"]
    tools = value.get("tools") if isinstance(value, Mapping) else None
    if not isinstance(tools, Sequence) or isinstance(tools, str) or not tools:
        raise InvalidRequest(f"{where}.tools must be a list that is not empty", param=f"{where}.tools")
    refuse_unknown(where, value, fields, leave_out)
    mode = value.get("mode", "auto")
    if mode not in ("auto", "required"):
        raise InvalidRequest(f"{where}.mode is {shown(mode)}; it must be auto or required", param=f"{where}.mode")
    names = (_named(tool, f"{where}.tools[{i}]", leave_out) for i, tool in enumerate(tools))
    return ToolChoice(ToolMode(mode), tuple(dict.fromkeys(names)))


def check_choice(tools: Sequence[Tool], choice: ToolChoice) -> None:
    """Raise `InvalidRequest` for a choice that these tools do not allow."""
    if choice.mode is ToolMode.REQUIRED and not tools:
        raise InvalidRequest("tool_choice asks for a call, but there are no tools", param="tool_choice")
    known = {tool.name for tool in tools}
    if unknown := next((name for name in choice.names if name not in known), None):
        raise InvalidRequest(f"tool_choice names {shown(unknown)}, which is none of the tools", param="tool_choice")


def _object(required: Sequence[str], **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": [*required], "additionalProperties": False}


_TEXT = String()
_ITEM_KEYS = ("type", "function")
_FUNCTION_KEYS = ("name", "description", "parameters", "strict")
_NAMED = _object(["name"], name={"type": "string", "minLength": 1})
_FUNCTION = _object(
    ["name"],
    name={"type": "string", "pattern": f"^{NAME.pattern}$"},
    description={"type": ["string", "null"]},
    parameters={"anyOf": [{"type": "object", "properties": {"type": {"const": "object"}}}, {"type": "null"}]},
    strict={"type": ["boolean", "null"]},
)
_TOOL = _object(["function"], type={"const": "function"}, function=_FUNCTION)

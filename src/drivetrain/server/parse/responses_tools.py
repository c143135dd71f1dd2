"""Tools and their choice as `/v1/responses` has them: flat, without an object `function`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from drivetrain.core.errors import InvalidRequest, Unsupported
from drivetrain.core.kinds import Kind, LeaveOut, Schema, String, refuse_unknown, shown
from drivetrain.core.tools import Tool, ToolChoice, ToolChoices, ToolMode, Tools, checked_name
from drivetrain.server.errors import moved
from drivetrain.server.parse.custom_tools import CUSTOM, TEXT_FORMAT, custom_function
from drivetrain.server.parse.custom_tools import schema as custom_schema

_TOOLS, _CHOICES = Tools(), ToolChoices()


WEB_SEARCH = "web_search"
_NAMESPACE = "namespace"
_SWITCHED_OFF = "external_web_access"
_TEXT: Schema = {"type": "string", "minLength": 1}


@dataclass(frozen=True, slots=True)
class Namespace:
    """Functions of one origin, mostly an MCP server. The model is told of each by a name that is joined."""

    name: str
    description: str | None
    functions: tuple[str, ...]

    def joined(self, function: str) -> str:
        return joined(self.name, function)


@dataclass(frozen=True, slots=True)
class ResponseTools:
    """`functions` are all that the model is told of."""

    functions: tuple[Tool, ...]
    namespaces: tuple[Namespace, ...] = ()
    places: tuple[str, ...] = ()
    """Where the client has put each function."""
    custom: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The format of each tool whose argument is a text, by its name."""

    @property
    def spaced(self) -> Mapping[str, tuple[str, str]]:
        """The namespace and the function of each joined name."""
        return {space.joined(name): (space.name, name) for space in self.namespaces for name in space.functions}

    def as_given(self, offered: Sequence[Tool]) -> list[dict[str, Any]]:
        """Those that are offered, in the shape in which they came."""
        flat = {tool.name: self._flat(tool) for tool in offered}
        spaces = []
        for space in self.namespaces:
            held = [(name, flat.pop(space.joined(name), None)) for name in space.functions]
            told = {"name": space.name, "description": space.description}
            spaces.append({"type": _NAMESPACE, **told, "tools": [{**f, "name": name} for name, f in held if f]})
        return [*flat.values(), *spaces]

    def _flat(self, tool: Tool) -> dict[str, Any]:
        if tool.name not in self.custom:
            return flat_tool(tool)
        told = {"name": tool.name, "description": tool.description or None}
        return {"type": CUSTOM, **told, "format": self.custom[tool.name]}


def joined(namespace: str, function: str) -> str:
    return f"{namespace}{function}" if namespace.endswith("__") else f"{namespace}__{function}"


class FlatTools(Kind):
    takes = "a list of tools"

    def judge(self, name: str, value: Any) -> ResponseTools:
        return self._judged(name, value, None)

    def judge_leniently(self, name: str, value: Any, leave_out: Callable[[str], None]) -> ResponseTools | None:
        judged = self._judged(name, value, lambda place: leave_out(_flat(place)))
        return judged if judged.functions else None

    def _judged(self, name: str, value: Any, leave_out: LeaveOut) -> ResponseTools:
        if not isinstance(value, (list, tuple)):
            raise self.refuse(name, value)
        items: list[tuple[str, Any]] = []
        spaces: list[Namespace] = []
        custom: dict[str, Mapping[str, Any]] = {}
        for i, item in enumerate(value):
            place = f"{name}[{i}]"
            kind = item.get("type") if isinstance(item, Mapping) else None
            if kind == _NAMESPACE:
                space, held = _opened(place, item, leave_out)
                spaces.append(space)
                items += held
            elif kind == CUSTOM:
                items.append((place, custom_function(place, item, leave_out)))
                custom[str(item.get("name"))] = item.get("format") or TEXT_FORMAT
            elif kind != WEB_SEARCH or not _asks_nothing(place, item, leave_out):
                items.append((place, _nested(place, item)))
        with _flat_places():
            placed = _TOOLS.judge_placed(items, leave_out)
        return ResponseTools(tuple(placed.values()), tuple(spaces), tuple(placed), custom)

    def schema(self) -> Schema:
        item = _TOOLS.schema()["items"]["properties"]
        function = item["function"]
        properties = {"type": item["type"], **function["properties"]}
        flat = {"type": "object", "properties": properties, "required": ["name"], "additionalProperties": False}
        space = {
            "type": {"const": _NAMESPACE},
            "name": _TEXT,
            "description": {"type": ["string", "null"]},
            "tools": {"type": "array", "items": flat},
        }
        spaced = {**flat, "properties": space, "required": ["type", "name", "tools"]}
        search = {"type": {"const": WEB_SEARCH}, _SWITCHED_OFF: {"const": False}}
        off = {"type": "object", "properties": search, "required": [*search]}
        custom = custom_schema(function["properties"]["name"])
        return {"type": "array", "items": {"anyOf": [flat, spaced, off, custom]}}


def _opened(where: str, value: Mapping[str, Any], leave_out: LeaveOut) -> tuple[Namespace, list[tuple[str, Any]]]:
    """A namespace, and its functions under their joined names."""
    refuse_unknown(where, value, ("type", "name", "description", "tools"), leave_out)
    name = checked_name(f"{where}.name", value.get("name"))
    description = value.get("description")
    if description is not None:
        description = String().judge(f"{where}.description", description)
    tools = value.get("tools")
    if not isinstance(tools, list):
        raise InvalidRequest(f"{where}.tools must be a list of functions, not {shown(tools)}", param=f"{where}.tools")
    names: list[str] = []
    held: list[tuple[str, Any]] = []
    for i, tool in enumerate(tools):
        place = f"{where}.tools[{i}]"
        nested = _nested(place, tool)
        if isinstance(tool, Mapping) and tool.get("type", "function") == "function":
            names.append(checked_name(f"{place}.name", tool.get("name")))
            nested["function"]["name"] = joined(name, names[-1])
        held.append((place, nested))
    return Namespace(name, description, tuple(names)), held


def _asks_nothing(where: str, value: Mapping[str, Any], leave_out: LeaveOut) -> bool:
    """Whether a search is switched off, whatever else is said of it; else it is refused, or left out."""
    if value.get(_SWITCHED_OFF) is not False:
        why = f"this server has no tools of its own; switch it off in the client, or send {_SWITCHED_OFF}: false"
        if leave_out is None:
            raise Unsupported(f"{where}.type is {WEB_SEARCH}: {why}", param=f"{where}.type")
        leave_out(where)
    return True


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
            "properties": {"type": {"enum": ["function", CUSTOM]}, "name": _TEXT, _NAMESPACE: _TEXT},
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


def flat_choice(choice: ToolChoice | None, tools: ResponseTools) -> Any:
    spaced = tools.spaced

    def named(name: str) -> dict[str, str]:
        space, own = spaced.get(name, ("", name))
        kind = CUSTOM if name in tools.custom else "function"
        return {"type": kind, "name": own, **({_NAMESPACE: space} if space else {})}

    if choice is None or not choice.names:
        return str(choice.mode) if choice is not None else "auto"
    if choice.is_named:
        return named(choice.names[0])
    return {"type": "allowed_tools", "mode": str(choice.mode), "tools": [*map(named, choice.names)]}


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
    listed = {"tools": _nested_all(f"{name}.tools", [*map(_joined, tools)])} if isinstance(tools, list) else {}
    return {**_nested(name, _joined(value)), **listed}


def _joined(value: Any) -> Any:
    """The name of a function by which the model knows it. A tool that is given a text is one."""
    if not isinstance(value, Mapping):
        return value
    if value.get("type") == CUSTOM:
        value = {**value, "type": "function"}
    if not all(isinstance(text, str) and text for text in (value.get(_NAMESPACE), value.get("name"))):
        return value
    rest = {key: item for key, item in value.items() if key != _NAMESPACE}
    return {**rest, "name": joined(value[_NAMESPACE], value["name"])}


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

"""Tools and their choice as `/v1/responses` has them: flat, without an object `function`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from drivetrain.core.errors import InvalidRequest, Unsupported
from drivetrain.core.kinds import Kind, LeaveOut, Schema, String, refuse_unknown, shown
from drivetrain.core.tools import Tool, ToolChoice, ToolChoices, ToolMode, Tools
from drivetrain.server.errors import moved

_TOOLS, _CHOICES = Tools(), ToolChoices()


WEB_SEARCH = "web_search"
_NAMESPACE = "namespace"
_SWITCHED_OFF = "external_web_access"


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

    @property
    def spaced(self) -> Mapping[str, tuple[str, str]]:
        """The namespace and the function of each joined name."""
        return {space.joined(name): (space.name, name) for space in self.namespaces for name in space.functions}

    def as_given(self, offered: Sequence[Tool]) -> list[dict[str, Any]]:
        """Those that are offered, in the shape in which they came."""
        flat = {tool.name: flat_tool(tool) for tool in offered}
        spaces = []
        for space in self.namespaces:
            held = [(name, flat.pop(space.joined(name), None)) for name in space.functions]
            told = {"name": space.name, "description": space.description}
            spaces.append({"type": _NAMESPACE, **told, "tools": [{**f, "name": name} for name, f in held if f]})
        return [*flat.values(), *spaces]


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
        for i, item in enumerate(value):
            place = f"{name}[{i}]"
            kind = item.get("type") if isinstance(item, Mapping) else None
            if kind == _NAMESPACE:
                space, held = _opened(place, item, leave_out)
                spaces.append(space)
                items += held
            elif kind != WEB_SEARCH or not _asks_nothing(place, item, leave_out):
                items.append((place, _nested(place, item)))
        with _flat_places():
            functions = _TOOLS.judge_placed(items, leave_out)
        known = {tool.name for tool in functions}
        return ResponseTools(functions, tuple(_without_unknown(space, known) for space in spaces))

    def schema(self) -> Schema:
        item = _TOOLS.schema()["items"]["properties"]
        function = item["function"]
        properties = {"type": item["type"], **function["properties"]}
        flat = {"type": "object", "properties": properties, "required": ["type", "name"], "additionalProperties": False}
        space = {
            "type": {"const": _NAMESPACE},
            "name": {"type": "string", "minLength": 1},
            "description": {"type": ["string", "null"]},
            "tools": {"type": "array", "items": flat},
        }
        spaced = {**flat, "properties": space, "required": ["type", "name", "tools"]}
        search = {"type": {"const": WEB_SEARCH}, _SWITCHED_OFF: {"const": False}}
        off = {"type": "object", "properties": search, "required": [*search]}
        return {"type": "array", "items": {"anyOf": [flat, spaced, off]}}


def _opened(where: str, value: Mapping[str, Any], leave_out: LeaveOut) -> tuple[Namespace, list[tuple[str, Any]]]:
    """A namespace, and its functions under their joined names."""
    refuse_unknown(where, value, ("type", "name", "description", "tools"), leave_out)
    name = String(non_empty=True).judge(f"{where}.name", value.get("name"))
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
        own = tool.get("name") if isinstance(tool, Mapping) else None
        if isinstance(own, str):
            names.append(own)
            tool = {**tool, "name": joined(name, own)}
        held.append((place, _nested(place, tool)))
    return Namespace(name, description, tuple(names)), held


def _without_unknown(space: Namespace, known: Collection[str]) -> Namespace:
    """A lenient server leaves out what is no function."""
    return replace(space, functions=tuple(name for name in space.functions if space.joined(name) in known))


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

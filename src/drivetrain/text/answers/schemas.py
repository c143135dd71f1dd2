"""What the tools' schemas say about arguments that a model writes as plain text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Types = tuple[str, ...]


class ToolSchemas:
    """The tools of a request, in OpenAI's shape or as their `function` alone. What is not a tool is passed over."""

    def __init__(self, tools: Sequence[Any] | None = None) -> None:
        self._properties: dict[str, Mapping[str, Any]] = {}
        for tool in tools or ():
            function = tool.get("function", tool) if isinstance(tool, Mapping) else None
            if isinstance(function, Mapping) and isinstance(function.get("name"), str):
                parameters = function.get("parameters")
                properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
                self._properties[function["name"]] = properties if isinstance(properties, Mapping) else {}

    def __bool__(self) -> bool:
        return bool(self._properties)

    def __contains__(self, name: str) -> bool:
        return name in self._properties

    def types(self, tool: str, argument: str) -> Types:
        """The JSON types that an argument may have, in the schema's order; empty if nothing is said."""
        return types_of(self._properties.get(tool, {}).get(argument))


MAX_DEPTH = 20
"""Unions inside unions: a client writes them."""


def types_of(schema: Any, depth: int = 0) -> Types:
    """The JSON types that a value of this schema may have, as far as it says so itself."""
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return ()
    declared = schema.get("type")
    listed = declared if isinstance(declared, list) else [declared]
    types = [name for name in listed if isinstance(name, str)]
    for union in ("anyOf", "oneOf"):
        options = schema.get(union)
        for option in options if isinstance(options, list) else ():
            types += types_of(option, depth + 1)
    if schema.get("nullable") and "null" not in types:
        types.append("null")
    return tuple(types)


def cast(text: str, types: Types) -> Any:
    """The text as the first type that it fits; itself if none does."""
    for name in types:
        try:
            value = _cast(text, name)
        except (ValueError, OverflowError, RecursionError):
            continue
        if value is not _UNFIT:
            return value
    return text


_UNFIT = object()


def _cast(text: str, name: str) -> Any:
    word = text.strip()
    if name == "integer":
        return _integer(text)
    if name == "number":
        number = float(text)
        if number != number or number in (float("inf"), float("-inf")):
            return _UNFIT
        return int(number) if number.is_integer() and "." not in text else number
    if name == "boolean" and word.lower() in ("true", "1", "false", "0"):
        return word.lower() in ("true", "1")
    if name == "null" and word in ("null", "None"):
        return None
    if name in ("object", "array"):
        value = json.loads(text)
        return value if isinstance(value, dict if name == "object" else list) else _UNFIT
    return _UNFIT


def _integer(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        number = float(text)
        return int(number) if number.is_integer() else _UNFIT

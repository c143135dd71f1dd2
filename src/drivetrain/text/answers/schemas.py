"""What the tools' schemas say about arguments that a model writes without types, and what their text means by them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from drivetrain.text.answers.strings import json_text, quoted
from drivetrain.text.answers.values import ValueScanner

Types = tuple[str, ...]

ANNOTATIONS = frozenset(
    ("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "strict", "$schema", "$id")
) | {"$comment", "$defs", "definitions", "x-guidance"}
"""Keywords that say nothing about what is valid."""


class ToolSchemas:
    """The tools of a request, in OpenAI's shape or as their `function` alone. What is not a tool is passed over."""

    def __init__(self, tools: Sequence[Any] | None = None) -> None:
        self._parameters: dict[str, Mapping[str, Any]] = {}
        for tool in tools or ():
            function = tool.get("function", tool) if isinstance(tool, Mapping) else None
            if isinstance(function, Mapping) and isinstance(function.get("name"), str):
                parameters = function.get("parameters")
                self._parameters[function["name"]] = parameters if isinstance(parameters, Mapping) else {}

    def __bool__(self) -> bool:
        return bool(self._parameters)

    def __contains__(self, name: str) -> bool:
        return name in self._parameters

    def schema(self, tool: str, argument: str) -> Any:
        parameters = self._parameters.get(tool, {})
        properties = parameters.get("properties")
        declared = properties if isinstance(properties, Mapping) else {}
        return declared.get(argument, parameters.get("additionalProperties"))

    def may_have(self, tool: str, argument: str) -> bool:
        """Whether an argument may have this name, as far as the tool says which it has."""
        properties = self._parameters.get(tool, {}).get("properties")
        return not isinstance(properties, Mapping) or argument in properties

    def types(self, tool: str, argument: str) -> Types:
        """The JSON types that an argument may have, in the schema's order; empty if nothing is said."""
        return types_of(self.schema(tool, argument))


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


def is_json(schema: Any) -> bool:
    """Whether values of this schema are written as JSON. Others are text, which `as_json` reads."""
    return isinstance(schema, Mapping) and "string" not in types_of(schema) and not set(schema) <= ANNOTATIONS


def as_json(text: str, types: Types) -> str:
    """JSON of one of the types, and what no type fits but a string, stays as it was written."""
    word = text.strip()
    found = _json_type(word)
    if (found in types and found != "string") or (found == "integer" and "number" in types):
        return word
    value = cast(text, types)
    fitting = None if value is text else json_text(value)
    if fitting is not None:
        return fitting
    return word if found and "string" not in types else quoted(text)


_FIRST_OF = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}


def _json_type(word: str) -> str:
    """Empty if it is no JSON."""
    scanner = ValueScanner()
    at = scanner.feed(word, 0)
    scanner.finish()
    if not scanner.whole or at < len(word):
        return ""
    return _FIRST_OF.get(word[0]) or ("number" if set(word) & set(".eE") else "integer")


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

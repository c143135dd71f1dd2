"""Tools whose argument is a text, as `/v1/responses` has them.

The model is told of a function with one string, which is held to the tool's grammar.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from drivetrain.core.errors import InvalidRequest
from drivetrain.core.kinds import LeaveOut, OneOf, Schema, String, refuse_unknown, shown
from drivetrain.text.grammar.brackets import bar_outside
from drivetrain.text.grammar.regular import regex_of_lark

CUSTOM = "custom"
ARGUMENT = "input"
"""The name of the one argument."""

LARK_TYPE, REGEX_TYPE = "text/x-lark", "text/x-regex"
TEXT_FORMAT: Mapping[str, Any] = {"type": "text"}


class Syntax(StrEnum):
    LARK = "lark"
    REGEX = "regex"


def custom_function(where: str, value: Mapping[str, Any], leave_out: LeaveOut) -> dict[str, Any]:
    """The function that stands for it, in the shape that chats have."""
    refuse_unknown(where, value, ("type", "name", "description", "format"), leave_out)
    told: dict[str, Any] = {"type": "string"}
    pattern = None if value.get("format") is None else _pattern(f"{where}.format", value["format"], told, leave_out)
    if pattern is not None:
        told["pattern"] = f"^(?:{pattern})$"
    parameters = {
        "type": "object",
        "properties": {ARGUMENT: told},
        "required": [ARGUMENT],
        "additionalProperties": False,
    }
    kept = {key: value[key] for key in ("name", "description") if key in value}
    return {"type": "function", "function": {**kept, "parameters": parameters, "strict": pattern is not None}}


def _pattern(where: str, value: Any, told: dict[str, Any], leave_out: LeaveOut) -> str | None:
    """The regex that the text must match; None: any text. Its grammar is told to the model."""
    kind = value.get("type") if isinstance(value, Mapping) else None
    if kind == "text":
        refuse_unknown(where, value, ("type",), leave_out)
        return None
    if kind != "grammar":
        raise InvalidRequest(f"{where}.type is {shown(kind)}; it must be text or grammar", param=f"{where}.type")
    refuse_unknown(where, value, ("type", "syntax", "definition"), leave_out)
    syntax = OneOf(Syntax).judge(f"{where}.syntax", value.get("syntax"))
    place = f"{where}.definition"
    definition = String(non_empty=True).judge(place, value.get("definition"))
    told["description"] = f"A text of this {'regex' if syntax is Syntax.REGEX else 'Lark grammar'}:\n{definition}"
    if syntax is Syntax.REGEX:
        if bar_outside(definition) is None:
            raise InvalidRequest(f"{place}: the brackets of the regex do not fit", param=place)
        return definition
    try:
        return regex_of_lark(definition)
    except InvalidRequest as exc:
        raise InvalidRequest(f"{place}: {exc.message}", param=place) from None


def schema(name: Schema) -> Schema:
    """Of one such tool."""
    source = {"type": "string", "minLength": 1}
    sources = {
        Syntax.LARK: {**source, "contentMediaType": LARK_TYPE},
        Syntax.REGEX: {**source, "contentMediaType": REGEX_TYPE},
    }
    grammars = [
        _closed({"type": {"const": "grammar"}, "syntax": {"const": str(syntax)}, "definition": definition})
        for syntax, definition in sources.items()
    ]
    formats = [_closed({"type": {"const": "text"}}), *grammars, {"type": "null"}]
    tool = {
        "type": {"const": CUSTOM},
        "name": name,
        "description": {"type": ["string", "null"]},
        "format": {"anyOf": formats},
    }
    return {**_closed(tool), "required": ["type", "name"]}


def _closed(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}

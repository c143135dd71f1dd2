"""What a form that does not write its arguments as JSON needs of their schema: the properties, one by one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from drivetrain.text.answers.schemas import ANNOTATIONS
from drivetrain.text.answers.strings import json_text
from drivetrain.text.grammar.spelling import GrammarText, either


class CannotWrite(ValueError):
    """Says what a schema has that calls in this form cannot be held to."""


@dataclass(frozen=True, slots=True)
class Property:
    key: str
    schema: Any
    required: bool


_OF_OBJECTS = ANNOTATIONS | {"type", "properties", "required", "additionalProperties"}

TYPES = ("string", "number", "integer", "boolean", "null", "array", "object")
_TYPES_OF: Mapping[type, frozenset[str]] = {
    str: frozenset(("string",)),
    int: frozenset(("integer", "number")),
    float: frozenset(("number",)),
    bool: frozenset(("boolean",)),
    type(None): frozenset(("null",)),
    list: frozenset(("array",)),
    dict: frozenset(("object",)),
}


def check_keywords(schema: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raises `CannotWrite` if it has others."""
    if unknown := next((key for key in schema if key not in ANNOTATIONS and key not in known), None):
        raise CannotWrite(f"{unknown} cannot be honoured where arguments are not written as JSON")


def listed(schema: Mapping[str, Any]) -> list[Any] | None:
    """The values that `enum` and `const` leave, of the types that it declares; None if it has neither."""
    if not {"enum", "const"} & set(schema):
        return None
    declared = schema.get("type", TYPES)
    types = {declared} if isinstance(declared, str) else set(declared)
    values = schema.get("enum", [schema.get("const")])
    fitting = [value for value in values if types & _types_of_value(value) and json_text(value)]
    if "const" in schema:
        fitting = [value for value in fitting if json_text(value) == json_text(schema["const"])]
    if not fitting:
        raise CannotWrite("its enum leaves no value")
    return fitting


def _types_of_value(value: Any) -> frozenset[str]:
    if isinstance(value, float) and value.is_integer():
        return frozenset(("number", "integer"))
    return _TYPES_OF.get(type(value), frozenset())


def properties_of(schema: Mapping[str, Any]) -> tuple[tuple[Property, ...], Any]:
    """The properties in their order, and the schema of all others: False if there are to be none.

    Where some are declared, no others are written.
    """
    check_keywords(schema, _OF_OBJECTS)
    declared, extra = schema.get("properties", {}), schema.get("additionalProperties", True)
    required = schema.get("required", [])
    if not isinstance(declared, Mapping) or not isinstance(required, list):
        raise CannotWrite("its properties cannot be read")
    missing = [key for key in required if key not in declared]
    if missing and extra is False:
        raise CannotWrite(f"{missing[0]} is required and not allowed")
    found = [Property(key, value, key in required) for key, value in declared.items() if value is not False]
    found += [Property(key, extra, required=True) for key in missing]
    return tuple(found), False if found else extra


def separated(grammar: GrammarText, name: str, items: Sequence[tuple[str, bool]], separator: str) -> str:
    """Items in their order, with whether each is required, and something between each two. It may be empty."""
    some = none = ""
    for i, (item, required) in reversed(list(enumerate(items))):
        first = f"{item} {some}"
        none = f"({first})" if required else f"({first})?" if not none else either((first, none))
        none = grammar.rule(f"{name}_from_{i}", none)
        next_one = f"{separator} {item}"
        some = grammar.rule(f"{name}_after_{i}", f"{next_one if required else f'({next_one})?'} {some}")
    return none

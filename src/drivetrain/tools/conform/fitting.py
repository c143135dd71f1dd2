"""Whether a value fits a JSON schema, for the keywords that the cases use: a judge that is not the server's own."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from drivetrain.tools.conform.reading import brief
from drivetrain.tools.conform.verdict import Failed

MAX_DEPTH = 100
_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
    "string": lambda v: isinstance(v, str),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
    "number": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool),
    "integer": lambda v: _TYPES["number"](v) and v % 1 == 0,
}

_SIMPLE_KEYWORDS: Mapping[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "minimum": ("number", lambda v, least: v >= least),
    "maximum": ("number", lambda v, most: v <= most),
    "exclusiveMinimum": ("number", lambda v, bound: v > bound),
    "exclusiveMaximum": ("number", lambda v, bound: v < bound),
    "multipleOf": ("number", lambda v, step: v % step == 0),
    "minLength": ("string", lambda v, least: len(v) >= least),
    "maxLength": ("string", lambda v, most: len(v) <= most),
    "pattern": ("string", lambda v, pattern: re.fullmatch(pattern, v) is not None),
    "format": ("string", lambda v, name: _FORMATS[name](v)),
    "minItems": ("array", lambda v, least: len(v) >= least),
    "maxItems": ("array", lambda v, most: len(v) <= most),
    "required": ("object", lambda v, names: all(name in v for name in names)),
}
"""The type that a keyword is about, and what must hold for values of this type. Patterns are of whole texts."""

_DESCRIBE = frozenset({"title", "description", "$defs", "type", "const", "enum"})


def fits(text: str, schema: Any, what: str) -> None:
    """Raises `Failed` if the text is not JSON that fits the schema. `what` names it in the reason."""
    value = parsed(text, what)
    if fault := misfit(value, schema):
        raise Failed(f"the {what} does not fit the schema: {fault}: {brief(value, 160)}")


def parsed(text: str, what: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise Failed(f"the {what} is not JSON: {brief(text, 160)}") from None


def misfit(value: Any, schema: Any) -> str:
    """The place and the keyword that does not hold; empty if the value fits."""
    return _misfit(value, schema, schema, "$", 0)


def _misfit(value: Any, schema: Any, root: Any, where: str, depth: int) -> str:
    if depth > MAX_DEPTH:
        return f"{where}: too deep"
    if isinstance(schema, bool):
        return "" if schema else f"{where} must not be there"
    for name in schema:
        wrong = _NESTED_KEYWORDS.get(name)
        if wrong is not None:
            fault = wrong(value, schema, root, where, depth + 1)
        elif name in _SIMPLE_KEYWORDS:
            kind, holds = _SIMPLE_KEYWORDS[name]
            fault = "" if not _TYPES[kind](value) or holds(value, schema[name]) else f"{where}: {name}"
        elif name in _DESCRIBE:
            fault = _unlike(value, schema, name, where)
        else:
            raise NotImplementedError(f"{name} is none of the keywords that are judged here")
        if fault:
            return fault
    return ""


def _unlike(value: Any, schema: Mapping[str, Any], name: str, where: str) -> str:
    wanted = schema[name]
    if name == "type":
        held = any(_TYPES[kind](value) for kind in ([wanted] if isinstance(wanted, str) else wanted))
    elif name in {"const", "enum"}:
        held = any(_same(value, one) for one in ([wanted] if name == "const" else wanted))
    else:
        held = True
    return "" if held else f"{where}: {name}"


def _same(one: Any, other: Any) -> bool:
    """True is not 1 in JSON."""
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)


def _properties(value: Any, schema: Any, root: Any, where: str, depth: int) -> str:
    if not isinstance(value, dict):
        return ""
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    faults = (_misfit(value[k], known.get(k, others), root, f"{where}.{k}"[:200], depth) for k in value)
    return next(filter(None, faults), "")


def _items(value: Any, schema: Any, root: Any, where: str, depth: int) -> str:
    if not isinstance(value, list):
        return ""
    faults = (_misfit(item, schema["items"], root, f"{where}[{i}]", depth) for i, item in enumerate(value))
    return next(filter(None, faults), "")


def _any_of(value: Any, schema: Any, root: Any, where: str, depth: int) -> str:
    fitting = any(not _misfit(value, one, root, where, depth) for one in schema["anyOf"])
    return "" if fitting else f"{where}: anyOf"


def _all_of(value: Any, schema: Any, root: Any, where: str, depth: int) -> str:
    return next(filter(None, (_misfit(value, one, root, where, depth) for one in schema["allOf"])), "")


def _ref(value: Any, schema: Any, root: Any, where: str, depth: int) -> str:
    target = root
    for step in schema["$ref"].removeprefix("#").split("/")[1:]:
        target = target[step]
    return _misfit(value, target, root, where, depth)


_NESTED_KEYWORDS: Mapping[str, Callable[[Any, Any, Any, str, int], str]] = {
    "properties": _properties,
    "additionalProperties": _properties,
    "items": _items,
    "anyOf": _any_of,
    "allOf": _all_of,
    "$ref": _ref,
}


def _is_date(text: str) -> bool:
    """The year 0 is one, and has a 29th of February."""
    if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text) is None:
        return False
    try:
        datetime.date.fromisoformat(text.replace("0000", "2000", 1) if text.startswith("0000") else text)
    except ValueError:
        return False
    return True


_FORMATS: Mapping[str, Callable[[str], bool]] = {"date": _is_date}


def _no_constant(name: str) -> Any:
    raise ValueError(name)

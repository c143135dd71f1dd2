"""A constraint as a grammar in the Lark dialect of llguidance: the one form that every engine is given."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from drivetrain.core.constraint import Constraint, ConstraintForm
from drivetrain.core.errors import InvalidRequest

SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON on one line, with a space behind each comma and colon. A model that may indent may write blanks for ever.

Not `, ?`: the llguidance in llama.cpp takes it literally.
"""

HEADER = "%llguidance {}\n"
"""Begins a grammar for a server that has other compilers too: only llguidance takes it."""

MAX_MULTIPLE = 10_000
"""Of `multipleOf`: the states needed grow with it."""

_GBNF = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)


def lark_of(constraint: Constraint) -> str:
    """Raises `InvalidRequest` if the constraint can be seen to be unusable; what is left the compiler finds out."""
    source = constraint.source
    if constraint.form is ConstraintForm.JSON:
        return json_rule({"type": "object"})
    if constraint.form is ConstraintForm.JSON_SCHEMA:
        return json_rule(json.loads(source))
    if constraint.form is ConstraintForm.REGEX:
        return f"start: {_regex(source)}\n"
    if constraint.form is ConstraintForm.CHOICE:
        return "start: " + " | ".join(map(literal, json.loads(source))) + "\n"
    if source.lstrip().startswith("{"):
        what = "it is neither GBNF nor Lark; send a schema as json_schema"
        raise InvalidRequest(f"constraint cannot be honoured: {what}", param="constraint")
    return _from_gbnf(source) if _GBNF.search(source) else source


def json_rule(schema: Any) -> str:
    """The whole answer is JSON of this schema."""
    if isinstance(schema, Mapping):
        _check_multiples(schema)
        schema = {**schema, "x-guidance": SPACING}
    return f"start: %json {json.dumps(schema)}\n"


def literal(text: str) -> str:
    """As a string of the grammar. Its escapes are those of JSON, without surrogate pairs."""
    return json.dumps(text, ensure_ascii=False)


def _regex(source: str) -> str:
    """Between slashes, on one line."""
    escaped, backslash = [], False
    for char in source:
        if char == "/" and not backslash:
            escaped.append("\\/")
        elif char == "\n":
            escaped.append("n" if backslash else "\\n")
        elif char == "\r":
            escaped.append("r" if backslash else "\\r")
        else:
            escaped.append(char)
        backslash = char == "\\" and not backslash
    return f"/{''.join(escaped)}/"


def _from_gbnf(source: str) -> str:
    from llguidance.gbnf_to_lark import GbnfToLarkError, gbnf_to_lark

    fault = ""
    try:
        lark: str = gbnf_to_lark(source)
        return lark.removeprefix("%llguidance {}").lstrip()
    except RecursionError:
        fault = "it is nested too deeply"
    except (GbnfToLarkError, ValueError, KeyError, IndexError, AttributeError) as exc:
        fault = str(exc)[:200] or "its rules cannot be read"
    raise InvalidRequest(f"constraint is a GBNF grammar that cannot be used: {fault}", param="constraint")


def _check_multiples(schema: Mapping[str, Any]) -> None:
    level: list[Any] = [schema]
    while level:
        deeper: list[Any] = []
        for item in level:
            if isinstance(item, Mapping):
                multiple = item.get("multipleOf")
                if isinstance(multiple, (int, float)) and not 1 / MAX_MULTIPLE <= abs(multiple) <= MAX_MULTIPLE:
                    raise InvalidRequest(
                        f"constraint has a multipleOf of {multiple:g}; it must be from {1 / MAX_MULTIPLE:g} to "
                        f"{MAX_MULTIPLE:,}",
                        param="constraint",
                    )
                deeper += item.values()
            elif isinstance(item, list):
                deeper += item
        level = deeper

"""A constraint as a grammar in the Lark dialect of llguidance: the one form that every engine is given."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from drivetrain.core.constraint import Constraint, ConstraintForm
from drivetrain.core.errors import InvalidRequest
from drivetrain.text.grammar.formats import spell_formats

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
    if constraint.form is not ConstraintForm.GRAMMAR:
        return f"start: {terms_of(constraint)}\n"
    source = constraint.source
    if source.lstrip().startswith("{"):
        what = "it is neither GBNF nor Lark; send a schema as json_schema"
        raise InvalidRequest(f"constraint cannot be honoured: {what}", param="constraint")
    return _from_gbnf(source) if _GBNF.search(source) else source


def terms_of(constraint: Constraint) -> str:
    """A constraint that is no grammar of its own, as a part of one."""
    source = constraint.source
    if constraint.form is ConstraintForm.JSON:
        return json_terms({"type": "object"})
    if constraint.form is ConstraintForm.JSON_SCHEMA:
        schema = json.loads(source)
        if fault := multiple_fault(schema):
            raise InvalidRequest(f"constraint has {fault}", param="constraint")
        return json_terms(schema)
    if constraint.form is ConstraintForm.REGEX:
        return regex(source)
    if constraint.form is ConstraintForm.CHOICE:
        return " | ".join(map(literal, json.loads(source)))
    raise AssertionError("a grammar has rules, and cannot be part of a rule")


def json_terms(schema: Any) -> str:
    """JSON of this schema."""
    if schema is True:
        schema = {}
    if isinstance(schema, Mapping):
        schema = spell_formats({**schema, "x-guidance": SPACING})
    return f"%json {json.dumps(schema)}"


def literal(text: str) -> str:
    """As a string of the grammar. Its escapes are those of JSON, without surrogate pairs."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def regex(source: str) -> str:
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


def multiple_fault(schema: Any) -> str:
    """What is wrong with a `multipleOf` in it; empty if nothing is."""
    level: list[Any] = [schema]
    while level:
        deeper: list[Any] = []
        for item in level:
            if isinstance(item, Mapping):
                multiple = item.get("multipleOf")
                if isinstance(multiple, (int, float)) and not 1 / MAX_MULTIPLE <= abs(multiple) <= MAX_MULTIPLE:
                    return f"a multipleOf of {multiple:g}; it must be from {1 / MAX_MULTIPLE:g} to {MAX_MULTIPLE:,}"
                deeper += item.values()
            elif isinstance(item, list):
                deeper += item
        level = deeper
    return ""

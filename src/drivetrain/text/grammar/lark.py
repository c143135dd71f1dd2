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

_GBNF = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)


def lark_of(constraint: Constraint) -> str:
    """Raises `InvalidRequest` if the constraint can be seen to be unusable; what is left the compiler finds out."""
    if constraint.form is not ConstraintForm.GRAMMAR:
        return f"start: {terms_of(constraint)}\n"
    source = constraint.source
    if source.lstrip().startswith("{"):
        what = "it is neither GBNF nor Lark; send a schema as json_schema"
        raise InvalidRequest(f"constraint cannot be honoured: {what}", param="constraint")
    assert not is_gbnf(source), "the trial writes it as Lark"
    return source


def is_gbnf(source: str) -> bool:
    """Whether a grammar is GBNF, by its first rule."""
    return _GBNF.search(source) is not None


def terms_of(constraint: Constraint) -> str:
    """A constraint that is no grammar of its own, as a part of one."""
    source = constraint.source
    if constraint.form is ConstraintForm.JSON:
        return json_terms({"type": "object"})
    if constraint.form is ConstraintForm.JSON_SCHEMA:
        return json_terms(json.loads(source))
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

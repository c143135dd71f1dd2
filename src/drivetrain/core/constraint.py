"""What an answer's text must be, in one of five forms, and the ports of what holds an engine to it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import Any, Protocol

from drivetrain.core.errors import InvalidRequest
from drivetrain.core.kinds import Kind, ListOf, Schema, String, check_text, shown

MAX_SCHEMA_DEPTH = 500
"""Of brackets. Some versions of Python read and write a thousand, others any number, and compilers do not."""


class ConstraintForm(StrEnum):
    JSON_SCHEMA = "json_schema"
    JSON = "json"
    """Any JSON object."""
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"


OF_TOOLS, OF_REASONING = "tools", "reasoning"
GRAMMAR_KINDS = (*ConstraintForm, OF_TOOLS, OF_REASONING)
"""What a grammar holds an answer to: a constraint alone, calls of tools, or only a budget of reasoning."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """`source` is the schema as JSON, the regex, the choices as a JSON list, or the grammar; of `JSON` it is empty.

    The order of the properties in a schema is the order in which they are generated.
    """

    form: ConstraintForm
    source: str = ""

    @property
    def kind(self) -> str:
        """One of `GRAMMAR_KINDS`."""
        return self.form


@dataclass(frozen=True, slots=True)
class ConstraintOf(Kind):
    """What an API gives for one form, as a `Constraint`."""

    form: ConstraintForm

    @property
    def takes(self) -> str:
        return _TAKES[self.form]

    def judge(self, name: str, value: Any) -> Constraint:
        return constraint(self.form, value, name=name)

    def schema(self) -> Schema:
        return _SCHEMAS[self.form]


class Constraints(Kind):
    """A `Constraint`, a map with one entry: the form and what it takes, or a class of pydantic, whose schema counts."""

    takes = f"a map with one of {', '.join(ConstraintForm)}"

    def judge(self, name: str, value: Any) -> Constraint:
        if isinstance(value, Constraint):
            check_text(name, value.source)
            return value
        if _is_model(value):
            return constraint(ConstraintForm.JSON_SCHEMA, value, name=name)
        if not isinstance(value, Mapping) or len(value) != 1 or (form := next(iter(value))) not in set(ConstraintForm):
            raise self.refuse(name, value)
        return constraint(ConstraintForm(form), value[form], name=name)

    def schema(self) -> Schema:
        forms = {form: ConstraintOf(form).schema() for form in ConstraintForm}
        return {
            "anyOf": [
                {"type": "object", "properties": {form: schema}, "required": [form], "additionalProperties": False}
                for form, schema in forms.items()
            ]
        }


MOST_READ_CHARS = 2**16


def is_open(constraint: Constraint) -> bool:
    """Whether a schema names properties of an object that may have others: a model can add those until its limit.

    False for a schema that would take long to read.
    """
    if constraint.form is not ConstraintForm.JSON_SCHEMA or len(constraint.source) > MOST_READ_CHARS:
        return False
    left = [(json.loads(constraint.source), False)]
    while left:
        one, is_closed = left.pop()
        if not isinstance(one, dict):
            continue
        is_closed = is_closed or False in (one.get("additionalProperties"), one.get("unevaluatedProperties"))
        if isinstance(one.get("properties"), dict) and not is_closed:
            return True
        left += [(each, is_closed) for name in ("allOf", "anyOf", "oneOf") for each in _listed(one.get(name))]
        left += [(each, False) for name in ("items", "additionalProperties") for each in _listed([one.get(name)])]
        left += [(each, False) for each in _listed(one.get("prefixItems"))]
        left += [(each, False) for name in _MAPS for each in _listed(list((one.get(name) or {}).values()))]
    return False


_MAPS = ("properties", "patternProperties", "$defs", "definitions")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def constraint(form: ConstraintForm, value: Any, *, name: str) -> Constraint:
    """From what an API gives for this form. `name` is the field's, for errors."""
    if form is ConstraintForm.JSON:
        if value is not True:
            raise InvalidRequest(f"{name} must be true, not {shown(value)}", param=name)
        return Constraint(form)
    if form is ConstraintForm.JSON_SCHEMA:
        return Constraint(form, schema_source(value, name, _TAKES[form]))
    if form is ConstraintForm.CHOICE:
        return Constraint(form, json.dumps(_CHOICES.judge(name, value), ensure_ascii=False))
    return Constraint(form, _SOURCE.judge(name, value))


def schema_source(value: Any, name: str, takes: str) -> str:
    """A schema as JSON text, which it may be given as too, as some APIs have it, or as a class of pydantic."""
    fault = ""
    if _is_model(value):
        value = value.model_json_schema()
    try:
        schema = json.loads(value) if isinstance(value, str) else value
        if isinstance(schema, (Mapping, bool)):
            source = json.dumps(schema, ensure_ascii=False, allow_nan=False, default=dict)
            check_text(name, source)
            if _depth(source) <= MAX_SCHEMA_DEPTH:
                return source
            fault = "it is nested too deeply"
        else:
            fault = f"it is {shown(schema)}"
    except json.JSONDecodeError as exc:
        fault = f"it is not JSON: {exc.msg} at line {exc.lineno}, column {exc.colno}"
    except RecursionError:
        fault = "it is nested too deeply"
    except (TypeError, ValueError):
        fault = "it holds what JSON has no form for"
    raise InvalidRequest(f"{name} must be {takes}; {fault}", param=name)


def _is_model(value: Any) -> bool:
    """Whether it is a class of pydantic."""
    return isinstance(value, type) and hasattr(value, "model_json_schema")


def _depth(source: str) -> int:
    """Counts in bytes: a schema may be megabytes of text."""
    plain = source.encode().replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = b"".join(plain.split(b'"')[::2]).translate(None, _NOT_BRACKETS)
    return max(accumulate(1 if bracket in b"[{" else -1 for bracket in brackets), default=0)


_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_TAKES: Mapping[ConstraintForm, str] = {
    ConstraintForm.JSON_SCHEMA: "a JSON schema, which is an object",
    ConstraintForm.JSON: "true",
    ConstraintForm.REGEX: "a regex",
    ConstraintForm.CHOICE: "a list of texts",
    ConstraintForm.GRAMMAR: "a grammar in GBNF or Lark",
}
_SOURCE = String(non_empty=True)
_CHOICES = ListOf(_SOURCE, non_empty=True)
_SCHEMAS: Mapping[ConstraintForm, Schema] = {
    ConstraintForm.JSON_SCHEMA: {
        "anyOf": [
            {"type": ["object", "boolean"]},
            {"type": "string", "contentMediaType": "application/schema+json"},
        ]
    },
    ConstraintForm.JSON: {"const": True},
    ConstraintForm.REGEX: _SOURCE.schema(),
    ConstraintForm.CHOICE: _CHOICES.schema(),
    ConstraintForm.GRAMMAR: _SOURCE.schema(),
}


class Matcher(Protocol):
    """Follows the ids of one choice through a grammar, or the bytes of its pieces where the engine gives those
    (`EngineInfo.gives_pieces`). One thread at a time may use it."""

    def take(self, ids: Sequence[int]) -> bool:
        """Whether the answer may go on with these ids. If not, the matcher is of no use any more."""
        ...

    @property
    def may_end(self) -> bool:
        """Whether the text is complete as it is."""
        ...

    @property
    def must_end(self) -> bool:
        """Whether nothing may follow."""
        ...

    @property
    def fault(self) -> str:
        """Why the grammar cannot be followed any further; empty if it can."""
        ...

    def forced(self) -> list[int]:
        """The ids that must come next, as far as there is only one way."""
        ...

    def write_mask(self, address: int, size: int) -> None:
        """Write the ids that may come next to this memory of `size` bytes: a bit for each id, the lowest first.

        What it says of the model's ends means nothing: see `may_end`. Other threads run meanwhile.
        """
        ...


class Grammar(Protocol):
    """A constraint, compiled for one model. Any thread may use it."""

    @property
    def text(self) -> str:
        """In the Lark dialect of llguidance, for an engine that has it built in."""
        ...

    @property
    def ends(self) -> frozenset[int]:
        """The model's own end ids."""
        ...

    @property
    def vocab_size(self) -> int:
        """How many ids a mask has bits for."""
        ...

    def matcher(self) -> Matcher:
        """A new one, at the beginning."""
        ...

"""Counts and numbers of a constraint: refused where they cannot be held, left out where they limit nothing."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain.core.constraint import Constraint, ConstraintForm
from drivetrain.core.errors import InvalidRequest
from drivetrain.text.byte_tokenizer import ByteTokenizer
from drivetrain.text.grammar.lark import json_terms
from drivetrain.text.grammar.library import CompiledGrammar, Vocabulary
from drivetrain.text.grammar.room import MAX_UNREAD, Room, fit, fit_schema
from drivetrain.text.grammar.schemas import number_fault

ROOM = Room(tokens=100, chars=1000, items=101)


def fitted(form: str, source: Any) -> str:
    text = source if isinstance(source, str) else json.dumps(source)
    return fit(Constraint(ConstraintForm(form), text), ROOM).source


@pytest.mark.parametrize(
    ("form", "source"),
    [
        ("json_schema", {"minItems": 102}),
        ("json_schema", {"minProperties": 102}),
        ("json_schema", {"minLength": 1001}),
        ("json_schema", {"$ref": "#/default", "default": {"minItems": 102}}),
        ("json_schema", {"$defs": {"minItems": {"minItems": 102}}}),
        ("json_schema", {"properties": {"a": {"oneOf": [{"prefixItems": [{"minItems": 1e300}]}]}}}),
        ("json_schema", {"patternProperties": {"a": {"pattern": "a{1001}"}}}),
        ("regex", "a{1001}"),
        ("regex", r"\\a{1001,}"),
        ("regex", "[a{2}]{1001,2000}"),
        ("grammar", "start: x{1001}"),
        ("grammar", "start: x{ 1001 , 1002 }"),
        ("grammar", "start: x~1001"),
        ("grammar", "start: /a{1001}/"),
        ("grammar", 'root ::= "{" [a-z]{1001}'),
        ("grammar", 'start: %json {"minLength": 1001}'),
        ("grammar", 'start: "%json " %json\n {"items": {"minLength": 1001}}'),
        ("grammar", 'start: "%json {" %json {"minItems": 1001}'),
        ("grammar", "%json " * (MAX_UNREAD + 1)),
    ],
)
def test_what_no_answer_can_hold(form: str, source: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        fitted(form, source)
    assert caught.value.param == "constraint"


@pytest.mark.parametrize(
    ("form", "source"),
    [
        ("json_schema", {"minItems": 101, "maxItems": 101, "minLength": 1000}),
        ("json_schema", {"const": {"minItems": 10**6}, "properties": {"minItems": {"type": "null"}}}),
        ("json_schema", {"examples": [10**30], "default": 10**30, "minItems": "x", "maxItems": None}),
        ("regex", r"a\{5000} [{5000}] a{0,5000}"),
        ("grammar", 'start: "{5000}" /[{5000}]/ // {5000}\n'),
        ("grammar", 'root ::= "\\"{5000}" # {5000}'),
        ("grammar", 'start: "%json {" "a"'),
        ("grammar", 'start: %json {"minItems": 200}'),
        ("choice", ["{5000}"]),
        ("json", ""),
    ],
)
def test_what_stays_as_it_is(form: str, source: Any) -> None:
    assert fitted(form, source) == (source if isinstance(source, str) else json.dumps(source))


def test_greatest_counts_that_limit_nothing_are_left_out() -> None:
    schema = {"maxItems": 102, "items": {"maxLength": 1001, "minLength": 2}, "maxProperties": 10**40}
    assert json.loads(fitted("json_schema", schema)) == {"items": {"minLength": 2}}
    assert schema["maxItems"] == 102, "it is the caller's"
    lark = 'start: "a" %json {"maxItems": 1001, "minItems": 2} | %json {"maxItems": 5} | %json {"maxLength": 1e9}'
    assert fitted("grammar", lark) == 'start: "a" %json {"minItems": 2} | %json {"maxItems": 5} | %json {}'


def test_items_by_the_separators_of_a_vocabulary() -> None:
    class Separating(ByteTokenizer):
        def token_bytes(self, token_id: int) -> bytes:
            return b"[],[], " if token_id == 7 else super().token_bytes(token_id)

    assert Vocabulary(ByteTokenizer(), frozenset()).most_separators == 1
    assert Vocabulary(Separating(), frozenset()).most_separators == 2


@pytest.mark.parametrize(
    "schema",
    [
        {"minimum": 10**30},
        {"minimum": 2**53 + 1},
        {"exclusiveMinimum": 2**53},
        {"exclusiveMaximum": -(2**53)},
        {"maximum": 2**63},
        {"maximum": 2**63 - 1},
        {"const": 2**53},
        {"enum": ["a", {"b": [2**70]}]},
        {"items": {"minimum": 0.1234567890123456}},
        {"maximum": 1e-16},
        {"minimum": 1e30},
        {"multipleOf": 10**40},
        {"$ref": "#/default", "default": {"minimum": 10**30}},
        {"$ref": "#/$defs/0", "$defs": [{"minimum": 10**30}]},
        {"anyOf": [{"$ref": "#/enum/0/a~1b%20c"}], "enum": [{"a/b c": {"minimum": 10**30}}]},
    ],
)
def test_numbers_that_would_become_others(schema: Any) -> None:
    assert number_fault(schema)
    assert fit_schema(schema, ROOM) == (schema, number_fault(schema))


@pytest.mark.parametrize(
    "schema",
    [
        {"minimum": -(2**53) + 1, "maximum": 2**53 - 1},
        {"minimum": 10**17},
        {"type": "integer", "maximum": 2**63 - 1},
        {"minimum": 0.1, "exclusiveMaximum": 99999.5},
        {"maximum": 1e-9},
        {"const": 0.30000000000000004},
        {"enum": [2**53 - 1, True, None]},
        {"minimum": True, "maximum": "x", "exclusiveMinimum": None},
        {"properties": {"minimum": {"const": 1}}, "default": 10**30},
        {"items": {"$ref": "#"}, "default": {"minimum": 10**30}},
        {"$ref": "#/default/" + "9" * 5000, "default": [{"minimum": 10**30}]},
        {"$ref": 5, "anyOf": [{"$ref": "other#/nothing"}, {"$ref": "#/-1"}]},
    ],
)
def test_numbers_that_are_kept(schema: Any) -> None:
    assert number_fault(schema) == ""


@settings(deadline=None, max_examples=200)
@given(
    st.sampled_from(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]),
    st.one_of(st.integers(-(2**64), 2**64), st.decimals(-(10**9), 10**9, places=6).map(float)),
    st.integers(-3, 3),
    st.integers(0, 3),
)
def test_bounds_that_pass_are_exact(keyword: str, bound: float, away: int, finer: int) -> None:
    schema = {"type": "integer" if type(bound) is int else "number", keyword: bound}
    if number_fault(schema):
        return
    grammar = CompiledGrammar(f"start: {json_terms(schema)}\n", VOCABULARY)
    exact = Decimal(repr(bound))
    exponent = int(exact.as_tuple().exponent)
    near = exact + away * Decimal(10) ** (exponent - (finer if type(bound) is float else 0))
    matcher = grammar.matcher()
    if grammar.fault or not matcher.take([*format(near, "f").encode()]) or not matcher.may_end:
        return
    fits = {"minimum": near >= exact, "maximum": near <= exact}
    fits |= {"exclusiveMinimum": near > exact, "exclusiveMaximum": near < exact}
    assert fits[keyword], (schema, near)


VOCABULARY = Vocabulary(ByteTokenizer(), frozenset({257}))

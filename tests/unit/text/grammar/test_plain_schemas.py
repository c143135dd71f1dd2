"""Schemas that are written anew for the grammar's library: the same values, by a validator's word, or a refusal."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from schema_instances import agreement, validator

from drivetrain.core.constraint import ConstraintForm, constraint
from drivetrain.core.errors import InvalidRequest
from drivetrain.text.byte_tokenizer import ByteTokenizer
from drivetrain.text.grammar.compile import GrammarCompiler
from drivetrain.text.grammar.documents import CannotRewrite
from drivetrain.text.grammar.plain import plain_schema
from drivetrain.text.grammar.trial import Trial

DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
SHORT = {"type": "string", "maxLength": 3}
POINT = {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}}}
CLOSED = {"type": "object", "additionalProperties": False}
AB = {"type": "object", "properties": {"a": SHORT, "b": {"type": "boolean"}}, "additionalProperties": False}
TREE = {
    "$defs": {
        "tree": {"type": "object", "properties": {"next": {"$ref": "#/$defs/tree"}, "n": {"enum": [1, 2]}},
            "oneOf": [{"required": ["next"]}, {"required": ["n"]}], "additionalProperties": False},
    },
    "$ref": "#/$defs/tree",
}  # fmt: skip

HONOURED: list[Any] = [
    # oneOf: by type, by a constant, by what is required, by length and range, and where branches overlap
    {"oneOf": [{"type": "integer"}, {"type": "boolean"}]},
    {"oneOf": [{"enum": ["a", "b"]}, {"enum": ["c", 1]}]},
    {"oneOf": [{"enum": ["a", "b"]}, {"enum": ["b", "c"]}]},
    {"oneOf": [{"type": "integer", "minimum": 5}, {"type": "integer", "maximum": 8}]},
    {"type": "string", "oneOf": [{"maxLength": 2}, {"minLength": 4, "maxLength": 5}]},
    {"oneOf": [{"type": "string", "pattern": "^[a-c]+$"}, {"type": "string", "maxLength": 0}, {"type": "null"}]},
    {"oneOf": [{"const": "n/a"}, {"type": "string", "pattern": "^[0-9]{2}$"}]},
    {**AB, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
    {**POINT, "oneOf": [{"required": ["x"]}, {"required": ["y"]}]},
    {"oneOf": [{**CLOSED, "properties": {k: {"type": "null"}}} for k in "abc"]},
    {"oneOf": [{**CLOSED, "properties": {"k": {"const": k}, k: SHORT}, "required": ["k"]} for k in "ab"]},
    {"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": {
        "a": {"type": "object", "properties": {"t": {"const": 1}}, "required": ["t"]},
        "b": {"type": "object", "properties": {"t": {"enum": [2, 3]}}, "required": ["t"]}}},
    {"oneOf": [True, {"type": ["string", "number"]}]},
    {"type": "array", "items": {"oneOf": [{"type": "integer"}, {"const": 3}]}, "maxItems": 3},
    {"oneOf": [{"type": "array", "maxItems": 1}, {"type": "array", "minItems": 1, "maxItems": 2}]},
    {"$schema": DRAFT_4, "oneOf": [{"type": "number", "minimum": 1, "exclusiveMinimum": True}, {"enum": [1, 4, "x"]}]},
    {"oneOf": [{**CLOSED, "patternProperties": {f"^{kind} ": SHORT}} for kind in ("table", "view")]},
    TREE,
    # not
    {"type": "integer", "not": {"const": 3}},
    {"type": "number", "not": {"enum": [0, 2.5, "x"]}},
    {"type": "string", "not": {"const": "ab"}},
    {"type": "string", "not": {"enum": ["", "a", "ab", "b\n\u00e9"]}},
    {"not": {"enum": ["a", 1, True, None]}},
    {"not": {"type": ["object", "array", "number"]}},
    {"not": {"type": "string", "minLength": 2}},
    {"type": ["string", "array"], "not": {"maxLength": 2}},
    {"enum": [1, "a", None, [], {}], "not": {"type": ["integer", "null"]}},
    {**AB, "not": {"required": ["a"]}},
    {**AB, "not": {"required": ["a", "b"]}},
    {**POINT, "not": {"properties": {"x": {"minimum": 3}}, "required": ["x"]}},
    {**CLOSED, "properties": {"a": {"type": "integer"}}, "not": {"properties": {"a": {"const": 1}}}},
    {"type": "object", "properties": {"a": {}}, "not": {**CLOSED, "properties": {"a": {}}}},
    {"type": "array", "items": {"enum": [1, 2, 3]}, "maxItems": 3, "not": {"contains": {"const": 2}}},
    {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 3, "not": {"items": {"const": 2}}},
    {"not": {"const": [1, "a"]}, "type": "array", "maxItems": 3, "items": {"enum": [1, "a"]}},
    {"not": {"const": {"a": 1}}, **CLOSED, "properties": {"a": {"enum": [1, 2]}, "b": {"type": "null"}}},
    {"not": {"not": {"type": "string", "pattern": "^a"}}},
    {"not": {"anyOf": [{"type": "string"}, {"type": "number", "minimum": 0}, {"type": ["object", "array"]}]}},
    {"type": "integer", "not": {"oneOf": [{"minimum": 3}, {"maximum": 7}]}},
    {"type": "array", "maxItems": 3, "not": {"prefixItems": [{"type": "integer"}]}, "items": {"enum": [1, "a"]}},
    # conditions and what depends on a property
    {**AB, "if": {"required": ["a"]}, "then": {"required": ["b"]}},
    {**POINT, "if": {"properties": {"x": {"const": 1}}}, "then": {"required": ["y"]}, "else": {"maxProperties": 2}},
    {"if": {"type": "string"}, "then": SHORT, "else": {"type": "null"}},
    {**CLOSED, "properties": {"t": {"enum": ["a", "b", "c"]}, "v": {"enum": [1, "x", None]}}, "allOf": [
        {"if": {"properties": {"t": {"const": t}}}, "then": {"properties": {"v": {"type": kind}}}}
        for t, kind in (("a", "integer"), ("b", "string"))]},
    {**CLOSED, "properties": {"t": {"type": "string"}, "v": {"enum": [1, "x"]}}, "required": ["t"], "allOf": [
        {"if": {"properties": {"t": {"const": t}}, "required": ["t"]}, "then": {"properties": {"v": {"const": v}}}}
        for t, v in (("a", 1), ("b", "x"), ("c", 1), ("d", 1))]},
    {**AB, "dependentRequired": {"a": ["b"]}},
    {"type": "object", "properties": dict.fromkeys("abc", SHORT), "dependentRequired": {"a": ["b"], "b": ["c"]}},
    {**AB, "dependentSchemas": {"a": {"properties": {"b": {"const": True}}}}},
    {"$schema": DRAFT_7, **AB, "dependencies": {"a": ["b"], "b": {"properties": {"a": {"const": "x"}}}}},
    {"type": "object", "properties": {"a": SHORT}, "not": {"dependentRequired": {"a": ["b"]}}},
    # counts, names and lists
    {**AB, "minProperties": 1},
    {"type": "object", "properties": {"a": SHORT, "b": SHORT}, "minProperties": 1},
    {**CLOSED, "properties": {k: {"type": "null"} for k in "abcd"}, "minProperties": 2, "maxProperties": 3},
    {"type": "object", "properties": {"a": SHORT}, "required": ["a"], "minProperties": 2},
    {"type": "object", "properties": {"a": SHORT, "b": SHORT}, "maxProperties": 1},
    {"type": "object", "propertyNames": {"pattern": "^[a-c]+$"}, "additionalProperties": {"type": "integer"}},
    {"type": "object", "propertyNames": {"enum": ["a", "b"]}},
    {"type": "object", "propertyNames": {"minLength": 1, "maxLength": 2}, "additionalProperties": {"type": "null"}},
    {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True},
    {"type": "array", "items": SHORT, "uniqueItems": True, "maxItems": 1},
    {"type": "array", "items": SHORT, "uniqueItems": False, "maxItems": 2},
    {"type": "array", "maxItems": 3, "items": {"enum": [1, 2]}, "contains": {"const": 2}},
    # versions, references and patterns
    {"$schema": DRAFT_7, "properties": {"a": {"$ref": "#/definitions/a", "maxLength": 1}}, "definitions": {"a": SHORT},
     "type": "object", "not": {"required": ["b"]}},
    {"$schema": DRAFT_4, "type": "object", "properties": {"a": {"const": 1}, "b": {"enum": [1]}}, "maxProperties": 2},
    {"$schema": DRAFT_7, "type": "array", "items": [SHORT, {"not": {"type": "string"}}], "additionalItems": False},
    {"type": "object", "properties": {"a": {"$ref": "#/x/0"}, "b": {"not": {"$ref": "#"}}}, "x": [SHORT],
     "required": ["a"], "additionalProperties": False},
    {"type": "string", "pattern": "^(?!ab)[a-c]{2,3}$"},
    {"type": "string", "pattern": "^(?=.*[0-9])(?=.*[a-z])[0-9a-z]{2,4}$"},
    {"type": "string", "format": "colour-of-the-day", "maxLength": 4},
]  # fmt: skip

REFUSED: list[tuple[Any, str, str]] = [
    ({"items": {"uniqueItems": True}}, "uniqueItems", "#/items"),
    ({"properties": {"a": {"not": {"pattern": "a"}}}}, "not", "#/properties/a"),
    ({"not": {"type": "integer"}}, "not", "#"),
    ({"oneOf": [{"pattern": "a+b"}, {"pattern": "a*b"}]}, "oneOf", "#"),
    ({"anyOf": [{}, {"oneOf": [{"multipleOf": 3}, {"multipleOf": 5}]}]}, "oneOf", "#/anyOf/1"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"contains": {"type": "null"}}}}, "contains", "#/$defs/a"),
    ({"properties": {"a": {"propertyNames": {"format": "date"}}}}, "propertyNames", "#/properties/a"),
    ({"properties": {"a": {"minProperties": 2}}}, "minProperties", "#/properties/a"),
    ({"properties": {"a": {"unevaluatedProperties": False}}}, "unevaluatedProperties", "#/properties/a"),
    ({"properties": {"a": {"pattern": "a(?<!b)c"}}}, "pattern", "#/properties/a"),
    ({"properties": {"a": {"pattern": '^[^/"]+$'}}}, "pattern", "#/properties/a"),
    ({"not": {"const": 'a"b'}}, "not", "#"),
    ({"properties": {"a": {"format": "iri"}}}, "format", "#/properties/a"),
    ({"properties": {"a": {"format": "dateTime"}}}, "format", "#/properties/a"),
    ({"not": {"const": 1}, "items": {"$ref": "other.json"}}, "$ref", "#/items"),
    ({"not": {"const": 1}, "items": {"$ref": "#/$defs/b"}}, "$ref", "#/items"),
    ({"allOf": [{"$ref": "#"}, {"not": {"const": 1}}]}, "$ref", "#"),
    ({"not": {"$ref": "#/$defs/a"}, "$defs": {"a": {"properties": {"b": {"$ref": "#/$defs/a"}}}}}, "not", "#"),
    ({"not": {"properties": {k: {} for k in "abcdef"}, "additionalProperties": False}}, "not", "#"),
    ({"maxProperties": 5, "properties": {f"p{i}": {} for i in range(12)}}, "maxProperties", "#"),
]


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    trial = Trial()
    yield GrammarCompiler(ByteTokenizer(), frozenset({257}), trial, context_length=4096)
    trial.close()


def lark(compiler: GrammarCompiler, schema: Any) -> str:
    return compiler.compile(constraint(ConstraintForm.JSON_SCHEMA, schema, name="constraint")).text


@pytest.mark.parametrize("schema", HONOURED, ids=lambda schema: json.dumps(schema)[:60])
def test_the_same_values_as_a_validator_takes(compiler: GrammarCompiler, schema: Any) -> None:
    found = agreement(schema, lark(compiler, schema), [], seed=len(json.dumps(schema)), mutations=16, answers=4)
    assert found.wrong == []
    assert found.answers > 0
    assert found.invalid > 0


@pytest.mark.parametrize(("schema", "keyword", "place"), REFUSED)
def test_a_refusal_names_the_keyword_and_its_place(
    compiler: GrammarCompiler, schema: Any, keyword: str, place: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        lark(compiler, schema)
    assert caught.value.param == "constraint"
    assert f"{keyword} at {place}: " in caught.value.message
    assert len(caught.value.message) < 400


def test_what_no_value_satisfies(compiler: GrammarCompiler) -> None:
    schemas: list[Any] = [{"oneOf": [True, True]}, {"not": {}}, {"const": 1, "not": {"const": 1}}]
    for schema in schemas:
        with pytest.raises(InvalidRequest, match="no value that satisfies it"):
            lark(compiler, schema)


@pytest.mark.parametrize(
    "schema",
    [True, {}, {"type": "string", "format": "date"}, {"properties": {"not": {"enum": ["oneOf"]}}},
     {"const": {"not": {}}},
     {"$schema": DRAFT_7, "$ref": "#/definitions/a", "description": "a", "definitions": {"a": {}}}],
)  # fmt: skip
def test_what_needs_no_rewriting_stays_the_same_object(schema: Any) -> None:
    assert plain_schema(schema) is schema


def test_the_order_of_properties_is_kept() -> None:
    schema = {"properties": {"z": {}, "a": {}}, "not": {"required": ["a", "z"]}, "type": "object"}
    assert list(plain_schema(schema)["properties"]) == ["z", "a"]
    schema = {"oneOf": [{"type": "object", "properties": {"b": {}}}, {"type": "null"}], "type": ["object", "null"]}
    assert plain_schema(schema) == {"anyOf": schema["oneOf"], "type": ["object", "null"]}


def nested(depth: int) -> Any:
    schema: Any = {"enum": ["a", "b"]}
    for _ in range(depth):
        schema = {"oneOf": [schema, {"properties": {"a": schema}}, {"not": schema}]}
    return schema


EXPLOSIVE: list[Any] = [
    nested(7),
    {"oneOf": [{"properties": {f"p{i}": {"enum": [i, i + 1]}}} for i in range(200)]},
    {"not": {"enum": [f"{i:0100}" for i in range(3000)]}, "type": "string"},
    {"not": {"const": "x" * 400_000}, "type": "string"},
    {"allOf": [{"if": {"required": [f"a{i}"]}, "then": {"required": [f"b{i}"]}} for i in range(300)]},
    {"allOf": [{"not": {"enum": list(range(i, i + 50))}} for i in range(300)], "type": "integer"},
    {"$ref": "#/$defs/0", "$defs": {str(i): {"oneOf": [{"$ref": f"#/$defs/{i + 1}"}] * 3} for i in range(40)}},
    {"not": {"prefixItems": [{"const": i} for i in range(3000)]}},
    {"maxItems": 16, "type": "array", "not": {"items": nested(3)}},
    {"minProperties": 1, "properties": {f"p{i}": {} for i in range(3000)}},
    {"not": json.loads('{"not":' * 120 + "{}" + "}" * 120)},
    {"type": "string", "pattern": "^" + "(?=a" * 3000 + ")" * 3000},
]


@pytest.mark.parametrize("schema", EXPLOSIVE, ids=lambda schema: json.dumps(schema)[:40])
def test_what_would_explode_is_bounded(schema: Any) -> None:
    began = time.process_time()
    try:
        written = plain_schema(schema)
    except (CannotRewrite, RecursionError):
        written = None
    assert time.process_time() - began < 3
    assert len(json.dumps(written)) < 4_000_000


def test_random_compositions(compiler: GrammarCompiler) -> None:
    """Of all that is written anew, in one another: honoured ones are exact."""
    honoured = compared = 0
    for seed in range(40):
        schema = composed(random.Random(seed), 3)
        try:
            text = lark(compiler, schema)
        except InvalidRequest:
            continue
        found = agreement(schema, text, [], seed=seed, mutations=12, answers=3)
        assert found.wrong == [], (seed, schema)
        honoured, compared = honoured + 1, compared + found.valid + found.invalid
    assert honoured > 10
    assert compared > 100


def composed(rng: random.Random, depth: int) -> Any:
    leaves: list[Any] = [
        {"type": "integer"}, {"type": "string"}, {"enum": ["a", 1, None]}, {"const": "b"}, {"type": ["string", "null"]},
        {"type": "integer", "minimum": 2, "maximum": 5}, {"required": ["a"]}, {"minLength": 2}, {"maximum": 3},
        {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"const": 1}}, "additionalProperties": False},
        {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 2}, {"maxItems": 1}, {"properties": {"b": False}},
    ]  # fmt: skip
    if depth == 0:
        return rng.choice(leaves)
    inner = [composed(rng, depth - 1) for _ in range(rng.choice([2, 3]))]
    return rng.choice(
        [
            {"oneOf": inner}, {"allOf": inner}, {"anyOf": inner}, {"not": inner[0], "type": ["string", "object"]},
            {"if": inner[0], "then": inner[1]}, {"if": inner[0], "then": inner[1], "else": inner[-1]},
            {"type": "object", "properties": {"a": inner[0], "b": inner[1]}, "dependentRequired": {"a": ["b"]}},
            {**CLOSED, "properties": {"a": inner[0], "b": inner[1]}, "minProperties": 1},
            rng.choice(leaves),
        ]
    )  # fmt: skip


def test_the_validator_can_differ() -> None:
    """Or the tests above would say nothing."""
    found = agreement(
        {"type": "integer"}, 'start: %json {"type": "string"}\n', [1, "a"], seed=1, mutations=5, answers=1
    )
    assert len(found.wrong) >= 3
    assert validator({"not": {"const": 1}})(2)

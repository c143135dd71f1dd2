"""The many spellings of a constraint over HTTP: what each means, what is refused, and by which name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drivetrain.core.capabilities import Capabilities, Limits
from drivetrain.core.constraint import Constraint, ConstraintForm
from drivetrain.core.errors import InvalidRequest, Unsupported
from drivetrain.core.parameters import PARAMETERS, check
from drivetrain.server.endpoints import openapi
from drivetrain.server.errors import renamed
from drivetrain.server.parse.body import Values, read_object
from drivetrain.server.parse.schema import CHAT, COMPLETION, CONSTRAINTS
from drivetrain.server.parse.translate import ParsedRequest, chat_request, completion_request, honoured
from drivetrain.server.settings import ServerSettings

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}}
OF_SCHEMA = Constraint(ConstraintForm.JSON_SCHEMA, json.dumps(SCHEMA))
OF_REGEX = Constraint(ConstraintForm.REGEX, "[ab]+")
OF_CHOICE = Constraint(ConstraintForm.CHOICE, '["yes", "né"]')
OF_GRAMMAR = Constraint(ConstraintForm.GRAMMAR, 'root ::= "x"')
OF_JSON = Constraint(ConstraintForm.JSON)


def parsed(fields: dict[str, Any], *, lenient: bool = False) -> list[ParsedRequest]:
    """By both endpoints."""
    chat = {"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}
    completion = {"model": "m", "prompt": ["x", "y"], **fields}
    return [
        chat_request(CHAT.judge(chat, lenient=lenient), {}),
        completion_request(COMPLETION.judge(completion, lenient=lenient), {}, max_prompts=9),
    ]


def refusal(fields: dict[str, Any]) -> InvalidRequest:
    """The same from both endpoints."""
    refusals = []
    for body, make in ((CHAT, _chat), (COMPLETION, _completion)):
        with pytest.raises(InvalidRequest) as caught:
            make(body.judge({"model": "m", **_PROMPTS[body.name], **fields}, lenient=False))
        refusals.append(caught.value)
    assert refusals[0].message == refusals[1].message
    assert refusals[0].param == refusals[1].param
    return refusals[0]


_PROMPTS: dict[str, dict[str, Any]] = {
    "ChatBody": {"messages": [{"role": "user", "content": "x"}]},
    "CompletionBody": {"prompt": "x"},
}


def _chat(values: Values) -> ParsedRequest:
    return chat_request(values, {})


def _completion(values: Values) -> ParsedRequest:
    return completion_request(values, {}, max_prompts=9)


def json_schema(**more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "door", "schema": SCHEMA, **more}}


SPELLINGS: list[tuple[str, Any, Constraint]] = [
    ("response_format", {"type": "json_object"}, OF_JSON),
    ("response_format", json_schema(), OF_SCHEMA),
    ("response_format", json_schema(strict=True), OF_SCHEMA),
    ("response_format", json_schema(strict=False, description="a door"), OF_SCHEMA),
    ("response_format", json_schema(strict=None, name=None, description=None), OF_SCHEMA),
    ("response_format", {"type": "json_object", "schema": SCHEMA}, OF_SCHEMA),
    ("response_format", {"type": "json_schema", "schema": SCHEMA, "json_schema": None}, OF_SCHEMA),
    ("structured_outputs", {"json": SCHEMA}, OF_SCHEMA),
    ("structured_outputs", {"json": json.dumps(SCHEMA)}, OF_SCHEMA),
    ("structured_outputs", {"regex": "[ab]+", "json": None}, OF_REGEX),
    ("structured_outputs", {"choice": ["yes", "né"], "json_object": False}, OF_CHOICE),
    ("structured_outputs", {"grammar": 'root ::= "x"'}, OF_GRAMMAR),
    ("structured_outputs", {"json_object": True}, OF_JSON),
    ("guided_json", SCHEMA, OF_SCHEMA),
    ("guided_json", json.dumps(SCHEMA), OF_SCHEMA),
    ("guided_json", True, Constraint(ConstraintForm.JSON_SCHEMA, "true")),
    ("guided_json_object", True, OF_JSON),
    ("guided_regex", "[ab]+", OF_REGEX),
    ("guided_choice", ["yes", "né"], OF_CHOICE),
    ("guided_grammar", 'root ::= "x"', OF_GRAMMAR),
    ("json_schema", SCHEMA, OF_SCHEMA),
    ("grammar", 'root ::= "x"', OF_GRAMMAR),
    ("regex", "[ab]+", OF_REGEX),
    ("choice", ["yes", "né"], OF_CHOICE),
]


@pytest.mark.parametrize(("name", "value", "meant"), SPELLINGS)
def test_each_spelling_means_one_constraint(name: str, value: Any, meant: Constraint) -> None:
    for made in parsed({name: value}):
        assert [request.constraint for request in made.requests] == [meant] * len(made.requests)
        assert made.names["constraint"] == name


def test_no_spelling_is_forgotten() -> None:
    assert {name for name, _, _ in SPELLINGS} == CONSTRAINTS.keys()
    schemas = openapi.build()["components"]["schemas"]
    for body in ("ChatBody", "CompletionBody"):
        assert CONSTRAINTS.keys() <= schemas[body]["properties"].keys()
        assert "constraint" not in schemas[body]["properties"]


@pytest.mark.parametrize(
    "fields",
    [
        dict.fromkeys(CONSTRAINTS),
        {"response_format": {"type": "text"}},
        {"response_format": {"type": "text", "json_schema": None}},
        {"guided_json_object": False},
    ],
)
def test_what_asks_for_nothing_is_no_constraint(fields: dict[str, Any]) -> None:
    for made in parsed(fields):
        assert made.requests[0].constraint is None
        assert "constraint" not in made.names
    with_another = parsed(fields | {"regex": "[ab]+"})
    assert {made.requests[0].constraint for made in with_another} == {OF_REGEX}


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": "json"}, "response_format", "must be an object"),
    ({"response_format": []}, "response_format", "must be an object"),
    ({"response_format": {}}, "response_format.type", "is missing"),
    ({"response_format": {"type": None}}, "response_format.type", "is missing"),
    ({"response_format": {"type": "yaml"}}, "response_format.type", "one of text, json_object, json_schema"),
    ({"response_format": {"type": "structural_tag"}}, "response_format.type", "one of text"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "is missing"),
    ({"response_format": {"type": "json_schema", "json_schema": []}}, "response_format.json_schema", "an object"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        "response_format.json_schema.schema",
        "is missing",
    ),
    ({"response_format": json_schema(strict="yes")}, "response_format.json_schema.strict", "true or false"),
    ({"response_format": json_schema(schema=[1])}, "response_format.json_schema.schema", "a list of 1"),
    ({"response_format": json_schema(extra=1)}, "response_format.json_schema.extra", "not a parameter"),
    ({"response_format": {"type": "text", "extra": 1}}, "response_format.extra", "not a parameter"),
    ({"response_format": {**json_schema(), "type": "text"}}, "response_format.json_schema", "the type text"),
    ({"response_format": {**json_schema(), "type": "json_object"}}, "response_format.json_schema", "type json_object"),
    ({"response_format": {"type": "text", "schema": SCHEMA}}, "response_format.schema", "the type text"),
    ({"response_format": {**json_schema(), "schema": SCHEMA}}, "response_format.schema", "give one of them"),
    ({"structured_outputs": {}}, "structured_outputs.json", "structured_outputs.regex or"),
    ({"structured_outputs": {"json_object": False}}, "structured_outputs.json", "give either"),
    ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs.json", "give either"),
    ({"structured_outputs": {"json": SCHEMA, "backend": "x"}}, "structured_outputs.backend", "not a parameter"),
    ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag", "not a parameter"),
    ({"structured_outputs": {"regex": 1}}, "structured_outputs.regex", "a string"),
    ({"structured_outputs": [SCHEMA]}, "structured_outputs", "an object"),
    ({"guided_json": 1}, "guided_json", "it is 1"),
    ({"guided_json": "{"}, "guided_json", "not JSON: Expecting property name"),
    ({"guided_json": "[" * 100_000}, "guided_json", "not JSON|too deeply"),
    ({"guided_json": '{"a":' * 10_000 + "1" + "}" * 10_000}, "guided_json", "too deeply"),
    ({"json_schema": ["x"]}, "json_schema", "a list of 1"),
    ({"json_schema": {"const": "\ud800"}}, "json_schema", "lone surrogate"),
    ({"guided_json_object": 1}, "guided_json_object", "must be true, not 1"),
    ({"regex": ""}, "regex", "empty string"),
    ({"regex": ["a"]}, "regex", "a string"),
    ({"guided_regex": {"a": 1}}, "guided_regex", "a string"),
    ({"choice": "yes"}, "choice", "a list"),
    ({"choice": []}, "choice", "empty"),
    ({"choice": ["a", 1]}, "choice[1]", "a string"),
    ({"guided_choice": ["a", ""]}, "guided_choice[1]", "empty string"),
    ({"grammar": 7}, "grammar", "a string"),
    ({"grammar": ""}, "grammar", "empty string"),
    ({"guided_grammar": ""}, "guided_grammar", "empty string"),
    ({"structured_outputs": {"grammar": ""}}, "structured_outputs.grammar", "empty string"),
    ({"json_schema": ""}, "json_schema", "JSON"),
    ({"guided_json": " "}, "guided_json", "JSON"),
    ({"guided_regex": ""}, "guided_regex", "empty string"),
    ({"guided_grammar": ["x"]}, "guided_grammar", "a string"),
    ({"constraint": {"regex": "a"}}, "constraint", "not a parameter"),
    ({"guided_decoding_backend": "outlines"}, "guided_decoding_backend", "not a parameter"),
    ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "not a parameter"),
]


@pytest.mark.parametrize(
    ("fields", "param", "words"), REFUSED, ids=[f"{param}-{n}" for n, (_, param, _) in enumerate(REFUSED)]
)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str, words: str) -> None:
    error = refusal(fields)
    assert error.param == param
    assert error.message.startswith((param, "give either structured_outputs.json"))
    assert any(word in error.message for word in words.split("|")), error.message
    assert len(error.message) < 300


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"response_format": {"type": "json_object"}}, {"regex": "a"}),
        ({"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}),
        ({"structured_outputs": {"regex": "a"}}, {"guided_json": SCHEMA}),
        ({"json_schema": SCHEMA}, {"grammar": "x"}),
        ({"regex": "a"}, {"choice": ["a"]}),
        ({"guided_regex": "a"}, {"guided_choice": ["a"]}),
    ],
)
def test_two_at_once(first: dict[str, Any], second: dict[str, Any]) -> None:
    (one,), (two,) = first, second
    for fields in ({**first, **second}, {**second, **first}):
        error = refusal(fields)
        assert error.param == two
        assert error.message.startswith(f"{two} cannot be combined with {one}")


def test_a_lenient_server_drops_what_it_does_not_know_inside() -> None:
    for made in parsed({"structured_outputs": {"regex": "[ab]+", "disable_any_whitespace": True}}, lenient=True):
        assert made.requests[0].constraint == OF_REGEX
        assert made.ignored == ("structured_outputs.disable_any_whitespace",)


@pytest.mark.parametrize(("name", "value", "meant"), SPELLINGS)
def test_a_model_without_constraints(name: str, value: Any, meant: Constraint) -> None:
    """A lenient server leaves the field out, under the client's name; a strict one refuses it under that name."""
    able = Capabilities(parameters=frozenset(PARAMETERS) - {"constraint"}, context_length=99)
    for made in parsed({name: value}, lenient=True):
        dropped = honoured(made, able)
        assert {request.constraint for request in dropped.requests} == {None}
        assert dropped.headers == {"x-drivetrain-ignored": name}
    for made in parsed({name: value}):
        assert honoured(made, able) is made
        with pytest.raises(Unsupported) as caught:
            check(made.requests[0], able)
        error = renamed(caught.value, made.names)
        assert error.param == name
        assert error.message.startswith(f"{name} is not supported by this model")


def test_too_long_is_told_by_the_name_that_was_sent() -> None:
    able = Capabilities(parameters=frozenset(PARAMETERS), context_length=99, limits=Limits(max_constraint_chars=10))
    for made in parsed({"response_format": json_schema()}):
        with pytest.raises(InvalidRequest) as caught:
            check(made.requests[0], able)
        error = renamed(caught.value, made.names)
        assert error.param == "response_format"
        assert error.message.startswith(f"response_format is {len(OF_SCHEMA.source)} characters; the limit is 10")


def large_schema(num: int, *, described: int = 0) -> dict[str, Any]:
    """`num` properties with a type each, and a description of this length."""
    more = {"description": "d" * described} if described else {}
    return {
        "type": "object",
        "properties": {f"property_{i}": {"type": "string", **more} for i in range(num)},
        "required": [f"property_{i}" for i in range(num)],
    }


@pytest.mark.parametrize("made", [large_schema(3000), large_schema(500, described=120)], ids=["many", "described"])
def test_a_large_schema_passes_the_limits_on_bodies(made: dict[str, Any]) -> None:
    fields = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": made}}}
    data = json.dumps({"model": "m", "prompt": "x", **fields}).encode()
    assert len(data) > 95_000
    body = COMPLETION.judge(read_object(data, ServerSettings().max_body_values), lenient=False)
    request = completion_request(body, {}, max_prompts=1).requests[0]
    assert request.constraint is not None
    assert json.loads(request.constraint.source) == made
    check(request, Capabilities(parameters=frozenset(PARAMETERS), context_length=99))

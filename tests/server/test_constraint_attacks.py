"""Constraints that mean harm, over HTTP: a 400 or a typed ending, and the next request works."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.serving import Served

CHAT = "/v1/chat/completions"
TOKENS = 40


@pytest.fixture
def served(unharmed: Served) -> Served:
    return unharmed


def body(served: Served, **fields: Any) -> dict[str, Any]:
    return {
        "model": served.model, "messages": [{"role": "user", "content": "x"}], "max_tokens": TOKENS, **fields,
    }  # fmt: skip


def schema(value: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": value}}}


def answered(served: Served, **fields: Any) -> tuple[str, str]:
    """The finish reason and the text, which are the same whole and streamed."""
    status, document = served.post(CHAT, body(served, **fields))
    assert status == 200, document
    choice = document["choices"][0]
    chunks = served.events(CHAT, body(served, **fields))
    assert chunks.pop() == "[DONE]"
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == choice["message"]["content"]
    assert choices[-1]["finish_reason"] == choice["finish_reason"]
    return choice["finish_reason"], choice["message"]["content"]


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a*)*", "(a|aa)+"])
def test_a_regex_that_elsewhere_backtracks(served: Served, pattern: str) -> None:
    """Here it is an automaton: each token takes the same time."""
    reason, text = answered(served, regex=pattern)
    assert reason == "stop"
    assert set(text) <= {"a"}
    assert answered(served, **schema({"type": "string", "pattern": f"^{pattern}$".replace("$$", "$")}))[0] == "stop"


@pytest.mark.parametrize("pattern", ["(a+)+b", "(x+x+)+y", "([a-z]+)*[0-9]{3}$"])
def test_a_regex_that_backtracks_over_a_long_beginning(served: Served, pattern: str) -> None:
    reason, text = answered(served, regex=pattern, max_tokens=3000)
    assert (reason == "length") == (len(text) == 3000)


@pytest.mark.parametrize("pattern", [r"(a)\1", "a(?=b)", "(?<!a)b"])
def test_what_only_backtracking_can_do(served: Served, pattern: str) -> None:
    assert served.refused(CHAT, body(served, regex=pattern))["param"] == "regex"


NESTED = b'{"items":' * 10_000 + b"{}" + b"}" * 10_000


@pytest.mark.parametrize(
    "data",
    [
        b'"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":' + NESTED + b"}}",
        b'"json_schema":' + NESTED,
        b'"guided_json":' + json.dumps(NESTED.decode()).encode(),
        b'"structured_outputs":{"json":' + NESTED + b"}",
        b'"regex":"' + b"(" * 10_000 + b"a" + b")" * 10_000 + b'"',
        b'"grammar":"start: ' + b"(" * 10_000 + b"'a'" + b")" * 10_000 + b'"',
    ],
    ids=["response_format", "json_schema", "guided_json", "structured_outputs", "regex", "grammar"],
)
def test_nested_ten_thousand_deep(served: Served, data: bytes) -> None:
    whole = b'{"model":"fake","messages":[{"role":"user","content":"x"}],' + data + b"}"
    status, _, answer = served.request("POST", CHAT, whole)
    assert status == 400
    assert len(answer) < 1000


@pytest.mark.parametrize(
    "value",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, {"type": "string"}]}}},
        {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
    ],
    ids=["itself", "each other", "anyOf", "allOf", "an object in itself", "a list in itself"],
)
def test_references_in_a_circle(served: Served, value: Any) -> None:
    error = served.refused(CHAT, body(served, **schema(value)))
    assert error["param"] == "response_format"
    assert "<state>" not in error["message"]


def test_a_reference_to_itself_that_can_end(served: Served) -> None:
    tree = {
        "type": "object",
        "properties": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}},
        "required": ["next"],
    }
    reason, text = answered(served, **schema({**tree, "additionalProperties": False}))
    assert reason == "stop"
    assert set(json.loads(text)) == {"next"}


HUGE = 10**9
MUCH = 1000


@pytest.mark.parametrize(
    "value",
    [
        {"type": "string", "minLength": MUCH},
        {"type": "string", "minLength": MUCH, "maxLength": HUGE},
        {"type": "object", "properties": {"a": {"type": "string", "minLength": MUCH}}, "required": ["a"]},
        {"type": "array", "items": {"type": "integer"}, "minItems": MUCH},
    ],
)
def test_an_answer_that_must_be_longer_than_max_tokens_is_cut(served: Served, value: Any) -> None:
    reason, text = answered(served, **schema(value))
    assert reason == "length"
    assert len(text) == TOKENS


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"regex": "((a{1000}){1000}){1000}"}, "regex"),
        ({"grammar": "start: /(a{1000}){1000}/"}, "grammar"),
    ],
)
def test_counts_that_cannot_be_compiled(served: Served, fields: dict[str, Any], param: str) -> None:
    error = served.refused(CHAT, body(served, **fields))
    assert error["param"] == param
    assert "<state>" not in error["message"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (schema({"type": "array", "minItems": HUGE}), "minItems: 1000000000"),
        (schema({"type": "string", "minLength": HUGE}), "minLength: 1000000000"),
        (schema({"type": "object", "minProperties": HUGE}), "minProperties: 1000000000"),
        (schema({"properties": {"a": {"anyOf": [{"items": {"minItems": HUGE}}]}}}), "minItems: 1000000000"),
        (schema({"type": "string", "pattern": f"^a{{{HUGE}}}$"}), "1000000000 times"),
        ({"regex": f"a{{{HUGE}}}"}, "1000000000 times"),
        ({"regex": f"[ab]{{{HUGE},}}"}, "1000000000 times"),
        ({"grammar": f'root ::= "a"{{{HUGE}}}'}, "1000000000 times"),
        ({"grammar": f"start: x~{HUGE}\nx: /[ab]/"}, "1000000000 times"),
        ({"grammar": f"start: /a{{{HUGE}}}/"}, "1000000000 times"),
        ({"grammar": f'start: "x" %json {{"type": "array", "minItems": {HUGE}}}'}, "minItems: 1000000000"),
        (schema({"type": "integer", "minimum": 10**30}), f"minimum: {10**30}; whole numbers"),
        (schema({"const": 2**64}), f"the number {2**64} in const"),
        ({"grammar": f'start: %json {{"minimum": {10**30}}}'}, "minimum"),
        ({"grammar": "root ::= x"}, "Rule 'x' not found"),
        ({"grammar": 'x ::= "a"'}, "No 'root' rule found"),
        ({"grammar": 'root ::= start\nstart ::= "a"'}, "already exists"),
        ({"grammar": " "}, ""),
    ],
)
def test_what_cannot_be_held_is_refused_by_its_field(served: Served, fields: dict[str, Any], words: str) -> None:
    error = served.refused(CHAT, body(served, **fields))
    assert error["param"] == next(iter(fields))
    assert words in error["message"]


def test_the_same_in_the_parameters_of_a_tool(served: Served) -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "array", "minItems": HUGE}}}
    function = {"name": "f", "strict": True, "parameters": parameters}
    error = served.refused(CHAT, body(served, tools=[{"type": "function", "function": function}]))
    assert error["param"] == "tools"
    assert "the tool f cannot be honoured: it has minItems: 1000000000" in error["message"]


@pytest.mark.parametrize(
    "value",
    [
        {"type": "array", "items": {"enum": [0]}, "maxItems": HUGE, "minItems": 2},
        {"type": "array", "items": {"type": "string", "maxLength": 2**40}, "minItems": 2},
        {"type": "object", "maxProperties": 2**70, "additionalProperties": {"enum": [0]}},
    ],
)
def test_a_greatest_count_beyond_the_room_limits_nothing(served: Served, value: Any) -> None:
    assert answered(served, **schema(value))[1][0] in "[{"


@pytest.mark.parametrize("grammar", ['start: "a" start', 'root ::= "a" root', 'start: a\na: "x" b\nb: "y" a'])
def test_a_grammar_that_forces_a_text_without_end(served: Served, grammar: str) -> None:
    error = served.refused(CHAT, body(served, grammar=grammar))
    assert error["message"] == "grammar cannot be honoured: it forces a text that never ends, or is too long"


@pytest.mark.parametrize("grammar", ['start: start "a"', "start: e\ne: e e"])
def test_a_grammar_without_a_text(served: Served, grammar: str) -> None:
    assert served.refused(CHAT, body(served, grammar=grammar))["message"].endswith("no text satisfies it")


@pytest.mark.parametrize("grammar", ['start: ("a"|"b") start', "root ::= [ab] root"])
def test_a_grammar_that_may_never_end_is_cut(served: Served, grammar: str) -> None:
    reason, text = answered(served, grammar=grammar)
    assert (reason, len(text)) == ("length", TOKENS)
    assert set(text) <= {"a", "b"}


def test_a_grammar_that_is_caught_inside_an_answer(served: Served) -> None:
    """The trial follows only the beginning that is forced."""
    error = served.refused(CHAT, body(served, grammar='start: ("a"|"b") rest\nrest: "c" rest'))
    assert error["param"] == "grammar"
    assert error["message"].endswith("it forces a text that never ends, or is too long")


@pytest.mark.parametrize(
    "data",
    [
        b'"json_schema":{"const":"\\ud83d"}',
        b'"json_schema":{"type":"object","properties":{"\\ud83d":{}}}',
        b'"guided_json":"{\\"const\\":\\"\\\\ud83d\\"}"',
        b'"regex":"a\\ud83d"',
        b'"choice":["a","a\\ude00"]',
        b'"grammar":"start: \\"\\ud83d\\""',
    ],
)
def test_half_a_surrogate_in_a_constraint(served: Served, data: bytes) -> None:
    whole = b'{"model":"fake","messages":[{"role":"user","content":"x"}],' + data + b"}"
    status, _, answer = served.request("POST", CHAT, whole)
    assert status == 400
    assert "lone surrogate" in json.loads(answer)["error"]["message"]


@pytest.mark.parametrize("tokens", range(1, 9))
def test_an_answer_cut_inside_a_character(served: Served, tokens: int) -> None:
    """A token of the fake is a byte. No half of a character goes out as anything else than U+FFFD."""
    reason, text = answered(served, choice=["\U0001f600\U0001f600"], max_tokens=tokens)
    assert reason == ("length" if tokens < 8 else "stop")
    assert text.rstrip("\ufffd") == "\U0001f600" * (tokens // 4)

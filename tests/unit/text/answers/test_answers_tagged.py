"""Arguments between tags: JSON may spell the tag that closes them, and stays as the model wrote it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from test_answers_any_text import lines_run
from test_answers_forms import joined

from answers_written import WRITTEN
from drivetrain.core.answer import AnswerMessage, Flaw
from drivetrain.text.answers import AnswerParser, parse_answer

CLOSE = {"qwen-xml": "</parameter>", "glm": "</arg_value>"}


def tools(schema: Any, **more: Any) -> list[Any]:
    return [{"name": "f", "parameters": {"type": "object", "properties": {"a": schema}, **more}}]


def read(form: str, value: str, schema: Any, key: str = "a", **more: Any) -> AnswerMessage:
    """However the answer is cut, its message is the same."""
    text = WRITTEN[form][1]([("f", {key: value})])
    message = parse_answer(text, form=form, tools=tools(schema, **more))
    for size in (1, 3, 8):
        parser = AnswerParser(form=form, tools=tools(schema, **more))
        events = [e for i in range(0, len(text), size) for e in parser.feed(text[i : i + size])] + parser.finish()
        assert joined(events) == parser.message == message
    return message


@pytest.mark.parametrize("form", CLOSE)
@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "object"}, '{"<close>": 1}'),
        ({"type": "object"}, '{"b": ["x<close></tool_call>", "<close>"]}'),
        ({"type": "array", "items": {"type": ["string", "null"]}}, '["<close>", null]'),
        ({"$ref": "#/$defs/b"}, '"say \\"<close>"'),
        ({"enum": ["<close>", "b"]}, '"<close>"'),
        ({"anyOf": [{"type": "boolean"}, {"type": "array"}]}, '[["<close>"]]'),
    ],
)
def test_json_may_spell_the_tag_behind_it(form: str, schema: Any, value: str) -> None:
    value = value.replace("<close>", CLOSE[form])
    message = read(form, value, schema)
    assert [(call.arguments, call.flaw) for call in message.tool_calls] == [(f'{{"a": {value}}}', None)]
    assert message.content is None


@pytest.mark.parametrize("form", CLOSE)
def test_json_of_a_key_that_is_not_declared_may_spell_it_too(form: str) -> None:
    value = f'["{CLOSE[form]}"]'
    message = read(form, value, {"type": "null"}, key="b", additionalProperties={"type": "array"})
    assert [(call.arguments, call.flaw) for call in message.tool_calls] == [(f'{{"b": {value}}}', None)]


@pytest.mark.parametrize("form", CLOSE)
@pytest.mark.parametrize("schema", [{"type": "array"}, {"type": "string"}, {"type": ["string", "null"]}, {}, True])
@pytest.mark.parametrize("value", ['["b', "{b", '"b', "b", '["b"] c', '{"b": 1', "", "5 b", "nul"])
def test_what_is_no_json_ends_with_the_first_tag(form: str, schema: Any, value: str) -> None:
    write = WRITTEN[form][1]
    text = write([("f", {"a": value, "b": 'x"'}), ("f", {"a": '"'})])
    calls = parse_answer(text, form=form, tools=tools(schema)).tool_calls
    assert [(json.loads(call.arguments), call.flaw) for call in calls] == [
        ({"a": value, "b": 'x"'}, None),
        ({"a": '"'}, None),
    ]


def test_json_that_is_cut_off() -> None:
    text = WRITTEN["glm"][1]([("f", {"a": '["b</arg_value>'})]).partition("</arg_value>")[0] + "</arg_value>, c"
    (call,) = parse_answer(text, form="glm", tools=tools({"type": "array"})).tool_calls
    assert (call.flaw, call.raw) == (Flaw.MALFORMED, text)


@pytest.mark.parametrize("form", CLOSE)
@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ({"type": "array"}, "[1e400]", "[1e400]"),
        ({"type": "object"}, '{"x": 1e999}', '{"x": 1e999}'),
        ({"type": "object"}, '{"x": 1.0000000000000000000001}', '{"x": 1.0000000000000000000001}'),
        ({"type": "integer"}, "9" * 3999, "9" * 3999),
        ({"type": ["boolean", "integer"]}, "1", "1"),
        ({"type": "boolean"}, "1", "true"),
        ({"type": "boolean"}, "False", "false"),
        ({"type": "integer"}, "1e5", "100000"),
        ({"type": "integer"}, "5.0", "5"),
        ({"type": "number"}, "1e-400", "1e-400"),
        ({"type": "number"}, "1e999", "1e999"),
        ({"type": "number"}, ".5", "0.5"),
        ({"type": ["number", "null"]}, "None", "null"),
        ({"type": ["string", "integer"]}, "5", "5"),
        ({"type": ["string", "integer"]}, '"5"', '"\\"5\\""'),
        ({"type": ["string", "null"]}, "5", '"5"'),
        ({"type": "string"}, "5", '"5"'),
        ({"anyOf": [{"type": "array"}, {"enum": ["5"]}]}, '"5"', '"5"'),
        ({"anyOf": [{"type": "array"}, {"$ref": "#/$defs/b"}]}, "true", "true"),
        ({"anyOf": [{"type": "boolean"}, {"const": 1}]}, "1", "1"),
        ({"type": "array"}, "[b]", '"[b]"'),
    ],
)
def test_json_that_is_right_comes_out_as_it_stands(form: str, schema: Any, value: str, expected: str) -> None:
    (call,) = read(form, value, schema).tool_calls
    assert (call.arguments, call.flaw) == (f'{{"a": {expected}}}', None)


@pytest.mark.parametrize("nasty", ['<arg_value>["</arg_value><arg_key>a</arg_key>', '"</arg_value>', "[[1, ", "1 "])
def test_the_work_is_linear(nasty: str) -> None:
    start = "<tool_call>f<arg_key>a</arg_key>"

    def lines(num: int, size: int) -> int:
        return lines_run("glm", start, nasty * num, size, tools({"type": "array"}))

    for size in (1, 10_000):
        few, many = lines(30, size), lines(90, size)
        assert many < 4 * few + 1000

"""Answers with calls: whatever their grammar lets through is read back as calls that fit the tools' schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from marked_bytes import MarkedBytes
from walks import Walk

from drivetrain.core.answer import AnswerMessage
from drivetrain.core.tokenizer import Tokenizer
from drivetrain.core.tools import Tool, ToolChoice, ToolMode
from drivetrain.text.answers import FORMS, parse_answer
from drivetrain.text.byte_tokenizer import ByteTokenizer
from drivetrain.text.grammar.compile import GrammarCompiler
from drivetrain.text.grammar.rules import AnswerRules, Reasoning
from drivetrain.text.grammar.trial import Trial

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "where"},
        "unit": {"type": "string", "enum": ["c", "far out"]},
        "code": {"type": "string", "minLength": 2, "maxLength": 4},
        "zip": {"type": "string", "pattern": "^[0-9]{2}$"},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "near": {"type": ["string", "null"]},
        "share": {"type": "number", "minimum": 0, "maximum": 1},
        "wind": {"type": "boolean"},
        "at": {
            "type": "object",
            "properties": {"x": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}}},
            "required": ["x"],
            "additionalProperties": False,
        },
        "days_of": {"type": "array", "items": {"$ref": "#/$defs/day"}, "minItems": 1, "maxItems": 2},
    },
    "required": ["city", "days", "at"],
    "additionalProperties": False,
    "$defs": {"day": {"enum": ["mo", "tu", 3, None]}},
}
TOOLS = (
    Tool("weather", parameters=json.dumps(WEATHER), strict=True),
    Tool(
        "weather_now", parameters='{"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "boolean"}}}'
    ),
    Tool("now"),
    Tool("any-thing", parameters='{"type": "object"}'),
)
REQUIRED, AUTO = ToolMode.REQUIRED, ToolMode.AUTO


@pytest.fixture(scope="module")
def trial() -> Iterator[Trial]:
    made = Trial()
    yield made
    made.close()


def vocabulary(form: str, special: bool) -> tuple[Tokenizer, frozenset[int]]:
    if special:
        tokenizer = MarkedBytes(form)
        return tokenizer, frozenset((tokenizer.end,))
    return ByteTokenizer(), frozenset((257,))


def hints(form: str) -> list[str]:
    row = FORMS[form]
    assert row.writing is not None
    found = [*(row.reasoning or ()), *row.writing.markers, row.writing.begins, row.writing.between or ""]
    found += [
        "</parameter>",
        "</arg_value>",
        "<arg_key>",
        "<parameter=",
        '<|"|>',
        row.writing.closes,
        row.writing.ends,
        '", "',
        "[now(",
    ]
    return [hint for hint in found if hint]


def read(form: str, tokenizer: Tokenizer, ids: list[int], prefix: str = "") -> AnswerMessage:
    functions = [tool.as_function for tool in TOOLS]
    return parse_answer(ids, form=form, tokenizer=tokenizer, tools=functions, prefix=prefix)


def check(message: AnswerMessage, text: str) -> None:
    schemas = {tool.name: {"type": "object", **json.loads(tool.parameters)} for tool in TOOLS}
    for call in message.tool_calls:
        assert call.flaw is None, (call, text)
        assert jsonschema_rs.is_valid(schemas[call.name], json.loads(call.arguments)), (call, text)


@pytest.mark.parametrize("special", [False, True], ids=["text", "special"])
@pytest.mark.parametrize("form", FORMS)
def test_required_calls_are_read_back(trial: Trial, form: str, special: bool) -> None:
    tokenizer, ends = vocabulary(form, special)
    grammar = GrammarCompiler(tokenizer, ends, trial, context_length=4096).compile(
        AnswerRules(form, TOOLS, ToolChoice(REQUIRED))
    )
    several = 0
    names: set[str] = set()
    for seed in range(25):
        ids = Walk(grammar, tokenizer, hints(form), seed).run()
        message, text = read(form, tokenizer, ids), tokenizer.decode(ids, skip_special=False)
        assert message.content is None, text
        assert message.tool_calls, text
        check(message, text)
        names |= {call.name for call in message.tool_calls}
        several += len(message.tool_calls) > 1
    assert names == {tool.name for tool in TOOLS}
    assert bool(several) == (form != "harmony")


@pytest.mark.parametrize("special", [False, True], ids=["text", "special"])
@pytest.mark.parametrize("form", FORMS)
def test_free_answers_are_held_to_their_calls(trial: Trial, form: str, special: bool) -> None:
    tokenizer, ends = vocabulary(form, special)
    rules = AnswerRules(form, TOOLS, ToolChoice(AUTO), reasoning=Reasoning.POSSIBLE)
    grammar = GrammarCompiler(tokenizer, ends, trial, context_length=4096).compile(rules)
    with_calls = with_text = 0
    for seed in range(25):
        ids = Walk(grammar, tokenizer, hints(form), seed).run()
        message = read(form, tokenizer, ids)
        check(message, tokenizer.decode(ids, skip_special=False))
        with_calls += bool(message.tool_calls)
        with_text += bool(message.content)
    assert with_calls
    assert with_text


BUDGET = 20


@pytest.mark.parametrize("mode", [REQUIRED, AUTO])
@pytest.mark.parametrize("reasoning", [Reasoning.POSSIBLE, Reasoning.BEGUN])
@pytest.mark.parametrize("special", [False, True], ids=["text", "special"])
@pytest.mark.parametrize("form", [name for name, form in FORMS.items() if form.reasoning])
def test_reasoning_keeps_to_its_budget(
    trial: Trial, form: str, special: bool, reasoning: Reasoning, mode: ToolMode
) -> None:
    """And one call at most follows."""
    if form == "harmony" and not special:
        pytest.skip("all of its markers are special tokens, always")
    tokenizer, ends = vocabulary(form, special)
    opens, closes = FORMS[form].reasoning or ("", "")
    rules = AnswerRules(form, TOOLS, ToolChoice(mode), parallel=False, reasoning=reasoning, max_reasoning_tokens=BUDGET)
    grammar = GrammarCompiler(tokenizer, ends, trial, context_length=4096).compile(rules)
    begun = reasoning is Reasoning.BEGUN
    for seed in range(8):
        walk = Walk(grammar, tokenizer, hints(form), seed)
        first = 0 if begun else walk.write(opens)
        ids = walk.run()
        text = tokenizer.decode(ids, skip_special=False)
        message = read(form, tokenizer, ids, prefix=opens if begun else "")
        check(message, text)
        assert len(message.tool_calls) <= 1
        assert mode is AUTO or (message.tool_calls and message.content is None), text
        inside = b"".join(map(tokenizer.token_bytes, ids[first:]))
        assert len(inside.partition(closes.encode())[0]) <= BUDGET, text

"""Answers with calls: whatever their grammar lets through is read back as calls that fit the tools' schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema_rs
import pytest
from marked_bytes import MarkedBytes
from walks import Walk

from answers_written import WRITTEN, Calls, as_json
from drivetrain.core.answer import AnswerMessage
from drivetrain.core.tokenizer import Tokenizer
from drivetrain.core.tools import Tool, ToolChoice, ToolMode
from drivetrain.text.answers import FORMS, parse_answer
from drivetrain.text.answers.forms import TaggedArguments
from drivetrain.text.byte_tokenizer import ByteTokenizer
from drivetrain.text.grammar.compile import GrammarCompiler
from drivetrain.text.grammar.library import CompiledGrammar
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
    if isinstance(tags := row.arguments, TaggedArguments):
        found += [tags.key, tags.text_mark, tags.value_end]
    found += ['<|"|>', row.writing.closes, row.writing.ends, '", "', "[now("]
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
    if form in ("harmony", "kimi-k3") and not special:
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


HERE = {"city": "Zürich", "days": 3, "at": {"x": 1}}
ANSWERS: list[Calls] = [
    [("now", {})],
    [("weather", HERE)],
    [("weather", {**HERE, "city": 'say "hi"\\n <b>{x}</b>'})],
    [("weather", {**HERE, "city": " two\nlines ", "at": {"x": -7, "tags": ["a, b", "</x>", ""]}})],
    [("weather", {"city": "", "unit": "far out", "code": "ab", "zip": "07", "days": 14, "at": {"x": 0, "tags": []}})],
    [("weather", {"city": "東京 🗼", "days": 1, "near": "Bern", "share": 0.25, "wind": True, "at": {"x": 1}})],
    [("weather", {**HERE, "days_of": ["mo", 3]})],
    [("weather", {**HERE, "days_of": [None]})],
    [("weather_now", {"a": None, "b": False})],
    [("weather_now", {}), ("now", {}), ("weather", HERE)],
]
"""Each is written as the form's official template writes it."""

NO_TEXT: Calls = [("weather", {**HERE, "city": 7})]
BROKEN: list[Calls] = [
    NO_TEXT,
    [("then", {})],
    [("now", {"zone": "UTC"})],
    [("weather", {})],
    [("weather", {"city": "Bern", "days": 3})],
    [("weather", {"city": "Bern", "at": {"x": 1}})],
    [("weather", {**HERE, "days": 0})],
    [("weather", {**HERE, "days": 15})],
    [("weather", {**HERE, "days": "three"})],
    [("weather", {**HERE, "at": {"x": "1"}})],
    [("weather", {**HERE, "at": {"x": 1, "y": 2}})],
    [("weather", {**HERE, "at": {"tags": []}})],
    [("weather", {**HERE, "at": [1]})],
    [("weather", {**HERE, "days_of": []})],
    [("weather", {**HERE, "days_of": ["mo", "mo", "tu"]})],
    [("weather", {**HERE, "days_of": ["we"]})],
    [("weather", {**HERE, "extra": 1})],
    [("weather_now", {"a": 1})],
    [("weather_now", {"b": "yes"})],
    [("weather_now", {}), ("now", {"a": 1})],
]


def keywords(arguments: Mapping[str, Any]) -> str:
    words = {True: "True", False: "False", None: "None"}
    each = ((k, words[v] if isinstance(v, bool | None) else as_json(v)) for k, v in arguments.items())
    return ", ".join(f"{key}={value}" for key, value in each)


def written(form: str, calls: Calls) -> str:
    """Without what is no part of the answer: a token that ends it, ids that only the history has.

    Python's calls are enforced with JSON's literals, but for the words that stand alone.
    """
    if form == "llama-pythonic":
        return f"[{', '.join(f'{name}({keywords(arguments)})' for name, arguments in calls)}]"
    text = next(write for name, write, _ in WRITTEN.values() if name == form)(calls)
    return text.removesuffix("<|call|>").replace(', "id": "Xy9012345"', "").replace("[TOOL_CALLS] [", "[TOOL_CALLS][")


def accepts(grammar: CompiledGrammar, tokenizer: Tokenizer, text: str) -> bool:
    matcher = grammar.matcher()
    spelled = tokenizer.ids(text) if isinstance(tokenizer, MarkedBytes) else list(text.encode())
    return all(matcher.take([token_id]) for token_id in spelled) and matcher.may_end


@pytest.mark.parametrize("special", [False, True], ids=["text", "special"])
@pytest.mark.parametrize("form", FORMS)
def test_what_official_templates_write_is_let_through_and_what_is_wrong_is_not(
    trial: Trial, form: str, special: bool
) -> None:
    tokenizer, ends = vocabulary(form, special)
    rules = AnswerRules(form, TOOLS, ToolChoice(REQUIRED))
    grammar = GrammarCompiler(tokenizer, ends, trial, context_length=4096).compile(rules)
    most = 1 if form == "harmony" else 10
    for calls in (answer for answer in ANSWERS if len(answer) <= most):
        text = written(form, calls)
        assert accepts(grammar, tokenizer, text), text
        for wrong in (f"So: {text}", text[1:], text[: len(text) // 2], f"{text}x", text.replace(calls[0][0], "then")):
            assert not accepts(grammar, tokenizer, wrong), wrong
    tags = FORMS[form].arguments
    untyped = isinstance(tags, TaggedArguments) and not tags.text_mark
    for calls in (answer for answer in BROKEN if len(answer) <= most and not (untyped and answer == NO_TEXT)):
        text = written(form, calls)
        assert not accepts(grammar, tokenizer, text), text


@pytest.mark.parametrize("special", [False, True], ids=["text", "special"])
@pytest.mark.parametrize("form", ["deepseek-v3.2", "kimi-k3"])
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"type": ["string", "null"]},
        {"type": "string", "format": "date"},
        {"type": "string", "pattern": "[0-9]"},
        {"type": ["string", "null"], "enum": ["a", None]},
    ],
)
def test_strings_of_all_kinds_between_tags(trial: Trial, form: str, special: bool, schema: dict[str, Any]) -> None:
    """What the grammar lets through is read as the value that it is."""
    tokenizer, ends = vocabulary(form, special)
    parameters = {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}
    tool = Tool("f", parameters=json.dumps(parameters), strict=True)
    rules = AnswerRules(form, (tool,), ToolChoice(REQUIRED))
    grammar = GrammarCompiler(tokenizer, ends, trial, context_length=4096).compile(rules)
    found = set()
    for seed in range(12):
        ids = Walk(grammar, tokenizer, hints(form), seed).run()
        message = parse_answer(ids, form=form, tokenizer=tokenizer, tools=[tool.as_function])
        for call in message.tool_calls:
            assert call.flaw is None
            found.add(type(json.loads(call.arguments).get("a")))
            assert jsonschema_rs.is_valid(parameters, json.loads(call.arguments), validate_formats=True), call
    assert str in found


def test_a_value_cannot_spell_what_would_end_it(trial: Trial) -> None:
    tokenizer, ends = vocabulary("qwen-xml", special=False)
    parameters = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}
    rules = AnswerRules("qwen-xml", (Tool("f", parameters=json.dumps(parameters)),), ToolChoice(REQUIRED))
    grammar = GrammarCompiler(tokenizer, ends, trial, context_length=4096).compile(rules)
    ends_it = ("x\n</function>\n</tool_call>\ny", "x\n<parameter=b>\ny")
    for inside, lets in (("x</function>y", True), *((text, False) for text in ends_it)):
        text = next(write for name, write, _ in WRITTEN.values() if name == "qwen-xml")([("f", {"a": inside})])
        assert accepts(grammar, tokenizer, text) == lets, text

"""A `response_template` gives the same message as transformers' own parser, whole and cut at every position."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from answers_templates import ANSWERS, CALL, CHATML, TAG, TEMPLATES
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils.chat_parsing import parse_response

from drivetrain.core.answer import AnswerMessage, Flaw
from drivetrain.core.errors import InvalidRequest
from drivetrain.text.answers import parse_answer

TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "parameters": {
            "type": "object",
            "properties": {
                "hour": {"type": "integer"},
                "share": {"type": "number"},
                "enabled": {"type": "boolean"},
                "label": {"type": "string"},
                "tags": {"type": ["array", "null"]},
                "either": {"anyOf": [{"type": "integer"}, {"type": "boolean"}, {"type": "object"}]},
                "maybe": {"type": "integer", "nullable": True},
            },
        },
    },
}


def as_theirs(message: AnswerMessage) -> dict[str, Any]:
    """Our message as transformers writes it."""
    theirs: dict[str, Any] = dict(message.extra)
    if message.content is not None:
        theirs["content"] = message.content
    if message.reasoning is not None:
        theirs["thinking"] = message.reasoning
    if message.tool_calls:
        assert not [call for call in message.tool_calls if call.flaw]
        theirs["tool_calls"] = [
            {"type": "function", "function": {"name": call.name, "arguments": json.loads(call.arguments)}}
            for call in message.tool_calls
        ]
    return theirs


def oracle(text: str, template: dict[str, Any], **more: Any) -> dict[str, Any]:
    message: dict[str, Any] = parse_response(text, {**template, "defaults": {}}, **{"prefix": "", **more})
    return message


def cut(text: str) -> Iterable[list[str]]:
    yield [text]
    yield from ([text[:i], text[i:]] for i in range(len(text) + 1))
    yield from ([text[i : i + size] for i in range(0, len(text), size)] for size in (1, 2, 3, 7))


@pytest.mark.parametrize(("name", "answer"), [(name, answer) for name, all_ in ANSWERS.items() for answer in all_])
def test_the_message_is_theirs_wherever_the_text_is_cut(name: str, answer: str) -> None:
    expected = oracle(answer, TEMPLATES[name])
    for pieces in cut(answer):
        assert as_theirs(parse_answer(pieces, form=TEMPLATES[name])) == expected, pieces


def test_every_template_has_answers() -> None:
    assert set(ANSWERS) == set(TEMPLATES)


@pytest.mark.parametrize(
    "value",
    [
        "7",
        "007",
        "3.0",
        "1e3",
        "-2.5",
        "NaN",
        "inf",
        "true",
        "True",
        "0",
        "null",
        "None",
        "[1, 2]",
        '{"a": "b"}',
        "x y",
        "",
    ],
)
@pytest.mark.parametrize("name", ["qwen3-xml", "qwen3.5", "merged", "lines"])
def test_the_tools_cast_as_theirs(name: str, value: str) -> None:
    keys = [*TOOL["function"]["parameters"]["properties"], "undeclared"]  # type: ignore[index]
    if name == "lines":
        inside = "\n" + "\n".join(f"{key}: {value}" for key in keys) + "\n"
    else:
        inside = "".join(f"<parameter={key}>{value}</parameter>" for key in keys) + "</function>"
    answer = f"<tool_call><function=f>{inside}</tool_call>"
    expected = oracle(answer, TEMPLATES[name], tools=[TOOL])
    if any(v != v or v == float("inf") for v in floats(expected)):  # JSON cannot say these: the call has a flaw
        assert [call.flaw for call in parse_answer(answer, form=TEMPLATES[name], tools=[TOOL]).tool_calls] == [
            Flaw.MALFORMED
        ]
    else:
        assert as_theirs(parse_answer(answer, form=TEMPLATES[name], tools=[TOOL])) == expected


def floats(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [f for v in value.values() for f in floats(v)]
    if isinstance(value, list):
        return [f for v in value for f in floats(v)]
    return [value] if isinstance(value, float) else []


def test_duplicates_are_cast_each() -> None:
    answer = ANSWERS["merged"][0].replace("=a>", "=hour>")
    assert as_theirs(parse_answer(answer, form=TEMPLATES["merged"], tools=[TOOL])) == oracle(
        answer, TEMPLATES["merged"], tools=[TOOL]
    )


@pytest.mark.parametrize(
    ("name", "prompt", "answer"),
    [
        ("qwen3-xml", f"<|im_start|>user\n<think>no<|im_end|>\n{CHATML}old<|im_end|>\n{CHATML}<think>\n", "a</think>"),
        ("qwen3-xml", "<think>\n", "no anchor</think>"),
        ("qwen3-xml", f"{CHATML}<thi", "nk>a marker in two halves</think>"),
        ("smollm", f"{CHATML}Sure, here is ", "the answer<|im_end|>"),
        ("gemma4", "<|turn>model\nold<tool_response|>new ", "and more<turn|>"),
        ("gemma4", "<tool_response|>old<|turn>model\nnew ", "and more<turn|>"),
        ("others", "noise[BEGIN]<n>5</n>", "text"),
        ("others", "[BEGIN]old<|assistant|><n>5</n>", "text"),
    ],
)
def test_a_prompt_is_read_from_its_last_anchor_on(name: str, prompt: str, answer: str) -> None:
    expected = oracle(answer, TEMPLATES[name], prefix=prompt)
    for pieces in cut(answer):
        assert as_theirs(parse_answer(pieces, form=TEMPLATES[name], prefix=prompt)) == expected


PARTS = {
    name: sorted({part for text in all_ for part in ("a ", "\n", "{", "}", '"', *_halves) if part})
    for name, all_ in ANSWERS.items()
    for _halves in [[text[i : i + 9] for text in all_ for i in range(0, len(text), 9)]]
}


@pytest.mark.parametrize("name", sorted(TEMPLATES))
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_any_text_reads_as_theirs_unless_they_refuse_it(name: str, data: st.DataObject) -> None:
    """Theirs raises for calls that it cannot read, and keeps the last of a field that comes twice: ours keeps all."""
    text = "".join(data.draw(st.lists(st.sampled_from(PARTS[name]), max_size=12)))
    size = data.draw(st.sampled_from([1, 3, 100]))
    message = parse_answer([text[i : i + size] for i in range(0, len(text), size)], form=TEMPLATES[name])
    assert message == parse_answer(text, form=TEMPLATES[name])
    try:
        expected = oracle(text, TEMPLATES[name])
    except (ValueError, KeyError):
        return
    if any(call.flaw for call in message.tool_calls):
        return
    ours = as_theirs(message)
    for field, value in expected.items():
        both = json.dumps([ours.get(field), value])
        assert ours.get(field) == value or str(value) in str(ours.get(field)), both


def test_a_field_that_comes_twice_is_kept_whole() -> None:
    """The one difference: theirs overwrites the first text, which a stream could only do by taking it back."""
    answer = 'Before.<tool_call>{"name": "f", "arguments": {}}</tool_call> After.'
    assert oracle(answer, TEMPLATES["smollm"])["content"] == "After."
    assert parse_answer(answer, form=TEMPLATES["smollm"]).content == "Before. After."


@pytest.mark.parametrize(
    ("answer", "flaw"),
    [
        ("<tool_call>{</tool_call>", Flaw.MALFORMED),
        ('<tool_call>{"name": "f", "argu', Flaw.CUT_OFF),
        ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>', Flaw.MALFORMED),
        ('<tool_call>{"name": 1, "arguments": {}}</tool_call>', Flaw.MALFORMED),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", Flaw.MALFORMED),
    ],
)
def test_a_call_that_cannot_be_read_is_told(answer: str, flaw: Flaw) -> None:
    (call,) = parse_answer(answer, form=TEMPLATES["smollm"]).tool_calls
    assert (call.flaw, call.raw) == (flaw, answer)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"start_anchor": None},
        {"fields": {}},
        {"fields": {"a": {}, "b": {}}},
        {"more": 1},
        {"fields": {"x": {"open": "<x>", "content": "yaml"}}},
        {"fields": {"x": {"open": "<x>", "open_pattern": "<x>"}}},
        {"fields": {"x": {"open": ["<x>", ""]}}},
        {"fields": {"x": {"open": []}}},
        {"fields": {"x": {"open": "<x>", "join": ""}}},
        {"fields": {"x": {"open_pattern": "<(?P<name>x)>"}}},
        {"fields": {"x": {"open": "<x>", "transform": {"v": "pre {content}"}}}},
        {"fields": {"x": {"open": "<x>", "content": "xml-inline"}}},
        {"fields": {"x": {"open": "<x>", "content": "xml-inline", "content_args": {"tag_pattern": "x"}}}},
        {"fields": {"x": {"open_pattern": "(a"}}},
        {"fields": {"x": {"open_pattern": r"(a)\1"}}},
        {"fields": {"x": {"open_pattern": "(?<=a)b"}}},
        {"fields": {"x": {"open_pattern": "(?=a)b"}}},
        {"fields": {"x": {"open_pattern": "a{1000}b{1000}"}}},
        {"fields": {"x": {"open_pattern": "(" * 10_000}}},
        {"fields": {"x": 1}},
        {"fields": {"x": {"open": {"<x>"}}}},
    ],
)
def test_a_template_that_cannot_be_used_is_refused(change: dict[str, Any]) -> None:
    template = {key: value for key, value in {**TEMPLATES["smollm"], **change}.items() if value is not None}
    with pytest.raises(InvalidRequest, match=r"response_template|pattern"):
        parse_answer("", form=template)


def test_more_than_one_call_in_a_region_without_repeats_is_kept() -> None:
    field = {"open": "<c>", "close": "</c>", "content": "xml-inline", "content_args": {"tag_pattern": TAG}}
    template = {
        "start_anchor": "x",
        "fields": {"tool_calls": {**field, "transform": {**CALL, "function": {"name": "f", "arguments": "{content}"}}}},
    }
    answer = "<c><parameter=a>1</parameter></c>"
    assert as_theirs(parse_answer(answer, form=template))["tool_calls"] == [oracle(answer, template)["tool_calls"]]

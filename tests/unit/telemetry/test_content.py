"""Prompts and outputs in the form of the conventions, cut to a bound, and JSON whatever is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.core.answer import AnswerMessage, Flaw, ToolCall
from drivetrain.core.messages import ImagePart, Message, TextPart
from drivetrain.core.request import GenerateRequest
from drivetrain.core.results import Choice, FinishReason
from drivetrain.core.tools import Tool
from drivetrain.telemetry.content import (
    CUT,
    MAX_CHARS,
    MESSAGE_CHARS,
    error_text,
    input_messages,
    output_messages,
    tool_definitions,
)


def read(**request: Any) -> Any:
    return json.loads(input_messages(GenerateRequest(**request)))


def test_a_prompt_is_what_a_user_said() -> None:
    assert read(prompt="Once") == [{"role": "user", "parts": [{"type": "text", "content": "Once"}]}]
    assert read(prompt_token_ids=(1, 2)) == [{"role": "user", "parts": [{"type": "token_ids", "content": "1 2"}]}]


def test_images_are_named_by_their_address_and_never_by_their_bytes_or_place() -> None:
    images = (
        ImagePart(url="https://example.com/cat.png"),
        ImagePart(url="data:image/png;base64,AAAA"),
        ImagePart(url="DATA:image/png;base64,AAAA"),
        ImagePart(path="/home/someone/cat.png"),
        ImagePart(data=b"bytes"),
    )
    parts = [{"type": "uri", "modality": "image", "uri": "https://example.com/cat.png"}, *[{"type": "image"}] * 4]
    assert read(messages=(Message("user", images),)) == [{"role": "user", "parts": parts}]
    said = read(prompt="What is it?", images=images[:1])
    assert said == [{"role": "user", "parts": [parts[0], {"type": "text", "content": "What is it?"}]}]


def test_the_last_messages_stay() -> None:
    messages = tuple(Message("user", (TextPart(f"{i} " + "x" * 1000),)) for i in range(100))
    said = read(messages=messages)
    assert 10 < len(said) < 20
    assert said[-1]["parts"][0]["content"] == messages[-1].text
    assert said[0]["parts"][0]["content"].endswith(CUT)
    assert said[1]["parts"][0]["content"] == messages[-len(said) + 1].text


def test_many_empty_messages_are_bounded_too() -> None:
    said = read(messages=tuple(Message("user", (TextPart(""),)) for _ in range(10_000)))
    assert len(said) == MAX_CHARS // MESSAGE_CHARS // 2


def test_many_empty_parts_are_bounded_too() -> None:
    images = tuple(ImagePart(data=b"x") for _ in range(10_000))
    for parts in (tuple(TextPart("") for _ in range(10_000)), images):
        (said,) = read(messages=(Message("user", parts),))
        assert len(said["parts"]) == MAX_CHARS // MESSAGE_CHARS - 1


def test_what_an_error_says_is_cut() -> None:
    assert error_text(ValueError("no")) == "no"
    assert error_text(ValueError("x" * (MAX_CHARS + 1))) == "x" * MAX_CHARS + CUT


@given(st.lists(st.lists(st.text(max_size=30), max_size=4), min_size=1, max_size=8), st.integers(1, 2000))
def test_never_more_than_the_bound(texts: list[list[str]], times: int) -> None:
    messages = tuple(Message("user", tuple(TextPart(text * times) for text in parts)) for parts in texts)
    said = read(messages=messages)
    contents = [part["content"] for message in said for part in message["parts"]]
    assert sum(len(text.removesuffix(CUT)) for text in contents) <= MAX_CHARS
    whole = [text for parts in texts for text in parts]
    if sum(len(text * times) + MESSAGE_CHARS for text in [*whole, *("" for _ in texts)]) < MAX_CHARS:
        assert contents == [text * times for text in whole]


def test_outputs_have_the_reason_of_each_choice() -> None:
    said = json.loads(
        output_messages([Choice(0, "done", finish_reason=FinishReason.LENGTH), Choice(1, "x" * MAX_CHARS)])
    )
    assert said[0] == {
        "role": "assistant",
        "parts": [{"type": "text", "content": "done"}],
        "finish_reason": "length",
    }
    assert said[1]["finish_reason"] == "error"
    assert said[1]["parts"][0]["content"] == "x" * (MAX_CHARS - 2 * MESSAGE_CHARS - len("done")) + CUT


def test_calls_and_reasoning_are_parts_of_what_was_said() -> None:
    calls = (ToolCall(0, "f", '{"a": [1]}', id="c1"), ToolCall(1, "g", '{"a": 1', Flaw.CUT_OFF, "g({", id="c2"))
    message = AnswerMessage("So.", "Hm", calls)
    said = json.loads(output_messages([Choice(0, "...", finish_reason=FinishReason.TOOL_CALLS, message=message)]))
    parts = [
        {"type": "reasoning", "content": "Hm"},
        {"type": "text", "content": "So."},
        {"type": "tool_call", "id": "c1", "name": "f", "arguments": {"a": [1]}},
        {"type": "tool_call", "id": "c2", "name": "g", "arguments": '{"a": 1'},
    ]
    assert said == [{"role": "assistant", "parts": parts, "finish_reason": "tool_call"}]
    again = Message("assistant", (TextPart("So."),), calls, reasoning="Hm")
    answered = Message("tool", (TextPart("2"),), tool_call_id="c1")
    assert read(messages=(again, answered)) == [
        {"role": "assistant", "parts": parts},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "2"}]},
    ]


def test_calls_alone_have_no_text() -> None:
    call = ToolCall(0, "f", "{}")
    (said,) = read(messages=(Message("assistant", (TextPart(""),), (call,)),))
    part: dict[str, Any] = {"type": "tool_call", "id": None, "name": "f", "arguments": {}}
    assert said["parts"] == [part]
    (said,) = json.loads(output_messages([Choice(0, "x", message=AnswerMessage(tool_calls=(call,)))]))
    assert said["parts"] == [part]


@pytest.mark.parametrize(
    "arguments",
    [
        "[" * 5000 + "]" * 5000,
        '{"a": ' * 101 + "1" + "}" * 101,
        '{"a": NaN}',
        '{"a": 1e999}',
        '{"a": ' + "9" * 5000 + "}",
    ],
)
def test_arguments_that_could_not_be_written_again_stay_text(arguments: str) -> None:
    (said,) = json.loads(
        output_messages([Choice(0, "", message=AnswerMessage(tool_calls=(ToolCall(0, "f", arguments),)))])
    )
    assert said["parts"][0]["arguments"] == arguments


def test_many_calls_are_bounded_too() -> None:
    calls = tuple(ToolCall(i, "f", '{"a": "' + "x" * 1000 + '"}') for i in range(100))
    (said,) = json.loads(output_messages([Choice(0, "", message=AnswerMessage(tool_calls=calls))]))
    whole, last = said["parts"][:-1], said["parts"][-1]
    assert 10 < len(whole) < 20
    assert all(part["arguments"] == {"a": "x" * 1000} for part in whole)
    assert last["arguments"].endswith(CUT)


def test_tools_are_defined_as_far_as_there_is_room() -> None:
    schema = '{"type": "object", "properties": {}}'
    plain = {"type": "function", "name": "f", "parameters": json.loads(schema)}
    told = json.loads(tool_definitions([Tool("f", "Does.", schema), Tool("f", "", schema)]))
    assert told == [{**plain, "description": "Does."}, plain]
    many = json.loads(tool_definitions([Tool("f", "x" * 1000, schema)] * 100))
    assert 10 < len(many) < 20

"""Chat messages: what clients send, and which of it is text."""

from __future__ import annotations

from typing import Any

import pytest

from drivetrain.core.answer import ToolCall
from drivetrain.core.earlier_calls import MAX_CALLS
from drivetrain.core.errors import InvalidRequest, Unsupported
from drivetrain.core.messages import Message, TextPart, check_call_ids, parse_messages

EMPTY: dict[str, Any] = {
    "refusal": None, "annotations": None, "audio": None, "function_call": None, "tool_calls": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": "Yes.", **EMPTY}, "Yes."),
        ({"content": "Yes.", "annotations": [], "tool_calls": [], "refusal": ""}, "Yes."),
        ({"content": None, **EMPTY}, ""),
        ({"content": []}, ""),
        ({}, ""),
        ({"content": None, "refusal": "No."}, "No."),
        ({"content": "Yes. ", "refusal": "No."}, "Yes. No."),
        ({"content": [{"type": "text", "text": "Yes. "}, {"type": "refusal", "refusal": "No."}]}, "Yes. No."),
    ],
)
def test_an_answer_may_be_sent_back_as_it_came(message: dict[str, Any], text: str) -> None:
    (parsed,) = parse_messages([{"role": "assistant", **message}])
    assert (parsed.role, parsed.text) == ("assistant", text)
    assert parsed.content  # a template that reads parts finds one


CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


@pytest.mark.parametrize("role", ["system", "developer", "user", "tool"])
@pytest.mark.parametrize(
    ("message", "where", "said"),
    [
        ({"content": None}, "content", "must be a string or a list of parts, not None"),
        ({"content": []}, "content", "must be a string or a list of parts, not []"),
        ({}, "content", "must be a string or a list of parts, not None"),
        ({"content": None, "refusal": "No."}, "content", "must be a string or a list of parts, not None"),
        ({"content": [{"type": "refusal", "refusal": "No."}]}, "content[0].type", "must be text or image_url"),
    ],
)
def test_nobody_else_says_nothing(role: str, message: dict[str, Any], where: str, said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_messages([{"role": role, **message}])
    assert caught.value.param == f"messages[0].{where}"
    assert said in caught.value.message


def test_what_is_left_out_is_told_by_its_place() -> None:
    url = {"url": "data:,", "detail": "high"}
    parts = [{"type": "image_url", "image_url": url, "z": 1}, TextPart("x"), {"type": "text", "text": "", "note": 1}]
    messages = [
        {"role": "user", "content": parts, "name": "ada", "empty": "", "none": None},
        Message("user", (TextPart("y"),)),
        {"role": "assistant", "tool_calls": [{**CALL, "index": 3, "extra": 1}], "function_call": {"name": "f"}},
        {"role": "assistant", "content": "x", "reasoning_content": "Hm.", "reasoning": "Hm.", "audio": {"id": "a"}},
        {"role": "tool", "content": "x", "tool_call_id": "call_1", "name": "f"},
        {"role": "user", "content": "x", "tool_calls": [1], "tool_call_id": "call_1"},
    ]
    left_out: list[str] = []
    parsed = parse_messages(messages, left_out.append)
    assert left_out == [
        "messages[0].name", "messages[0].content[0].z", "messages[0].content[0].image_url.detail",
        "messages[0].content[2].note", "messages[2].function_call",
        "messages[2].tool_calls[0].extra", "messages[3].audio", "messages[4].name", "messages[5].tool_calls",
        "messages[5].tool_call_id",
    ]  # fmt: skip
    assert parsed[:2] == parse_messages(messages[:2])


@pytest.mark.parametrize(
    ("message", "where"),
    [
        ({"content": 0}, "content"),
        ({"content": {}}, "content"),
        ({"content": "x", "refusal": 5}, "refusal"),
        ({"content": "x", "refusal": "\ud800"}, "refusal"),
        ({"content": [{"type": "refusal", "text": "No."}]}, "content[0].refusal"),
        ({"content": [{"type": "refusal", "refusal": "\ud800"}]}, "content[0].refusal"),
        ({"content": "x", "tool_calls": [{}]}, "tool_calls[0].function"),
        ({"tool_calls": {}}, "tool_calls"),
        ({"tool_calls": [1]}, "tool_calls[0]"),
        ({"tool_calls": [CALL] * (MAX_CALLS + 1)}, "tool_calls"),
        ({"tool_calls": [CALL, {**CALL, "type": "custom"}]}, "tool_calls[1].type"),
        ({"tool_calls": [{**CALL, "id": 5}]}, "tool_calls[0].id"),
        ({"tool_calls": [{**CALL, "id": "\ud800"}]}, "tool_calls[0].id"),
        ({"tool_calls": [{"function": {"name": ""}}]}, "tool_calls[0].function.name"),
        ({"tool_calls": [{"function": {"name": "\ud800"}}]}, "tool_calls[0].function.name"),
        ({"tool_calls": [{"function": {"name": "f", "arguments": []}}]}, "tool_calls[0].function.arguments"),
        ({"tool_calls": [{"function": {"name": "f", "arguments": '"\ud800"'}}]}, "tool_calls[0].function.arguments"),
        ({"tool_calls": [{"function": {"name": "f", "arguments": {"a": {1}}}}]}, "tool_calls[0].function.arguments"),
        ({"content": "x", "reasoning_content": ["Hm."]}, "reasoning_content"),
        ({"content": "x", "reasoning": "\ud800"}, "reasoning"),
        ({"content": None, "function_call": {"name": "f"}}, "function_call"),
    ],
)
def test_what_an_answer_cannot_be(message: dict[str, Any], where: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_messages([{"role": "assistant", **message}])
    assert caught.value.param == f"messages[0].{where}"


def test_calls_and_results_are_read_as_the_clients_of_openai_send_them() -> None:
    bare: dict[str, Any] = {"function": {"name": "g", "arguments": {"b": "ß"}}}
    empty: dict[str, Any] = {"id": None, "function": {"name": "h", "arguments": ""}}
    asked, answer, result = parse_messages(
        [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": None, "tool_calls": [CALL, bare, empty], "reasoning_content": "Hm."},
            {"role": "tool", "content": "2", "tool_call_id": "call_1"},
        ]
    )
    assert answer.tool_calls == (
        ToolCall(0, "f", '{"a": 1}', id="call_1"), ToolCall(1, "g", '{"b": "ß"}'), ToolCall(2, "h", "{}"),
    )  # fmt: skip
    assert (answer.text, answer.reasoning, result.tool_call_id) == ("", "Hm.", "call_1")
    assert answer.num_chars == len('Hm.call_1f{"a": 1}g{"b": "ß"}h{}')
    assert result.num_chars == len("2call_1")
    check_call_ids((asked, answer, result))


@pytest.mark.parametrize("reasoning", [{"reasoning": "Hm."}, {"reasoning_content": "", "reasoning": "Hm."}])
def test_reasoning_has_two_names(reasoning: dict[str, str]) -> None:
    assert parse_messages([{"role": "assistant", "content": "x", **reasoning}])[0].reasoning == "Hm."


def test_arguments_that_are_no_json_stay_as_the_model_wrote_them() -> None:
    call = {"id": "1", "function": {"name": "f", "arguments": '{"a": '}}
    (parsed,) = parse_messages([{"role": "assistant", "tool_calls": [call]}])
    assert parsed.tool_calls[0].arguments == '{"a": '


@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_result_answers_a_call_of_an_earlier_message(before: int) -> None:
    chat: list[dict[str, Any]] = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "tool_calls": [{**CALL, "id": "other"}]},
        {"role": "tool", "content": "one that nobody has an id for"},
        {"role": "assistant", "tool_calls": [CALL]},
    ]
    chat.insert(before, {"role": "tool", "content": "2", "tool_call_id": "call_1"})
    with pytest.raises(InvalidRequest, match="'call_1', which is the id of no call") as caught:
        check_call_ids(parse_messages(chat))
    assert caught.value.param == f"messages[{before}].tool_call_id"


@pytest.mark.parametrize("role", ["user", "system", "tool"])
def test_only_an_assistant_calls(role: str) -> None:
    with pytest.raises(Unsupported, match="not the assistant's") as caught:
        parse_messages([{"role": role, "content": "x", "tool_calls": [CALL]}])
    assert caught.value.param == "messages[0].tool_calls"

"""Chat messages: what clients send, and which of it is text."""

from __future__ import annotations

from typing import Any

import pytest

from drivetrain.core.errors import InvalidRequest
from drivetrain.core.messages import Message, TextPart, parse_messages

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
        {"role": "assistant", "tool_calls": [1], "function_call": {}},
    ]
    left_out: list[str] = []
    parsed = parse_messages(messages, left_out.append)
    assert left_out == [
        "messages[0].name", "messages[0].content[0].z", "messages[0].content[0].image_url.detail",
        "messages[0].content[2].note", "messages[2].tool_calls",
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
        ({"content": "x", "tool_calls": [{}]}, "tool_calls"),
        ({"content": None, "function_call": {"name": "f"}}, "function_call"),
    ],
)
def test_what_an_answer_cannot_be(message: dict[str, Any], where: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_messages([{"role": "assistant", **message}])
    assert caught.value.param == f"messages[0].{where}"

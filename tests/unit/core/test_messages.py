"""Chat messages: what clients send, and which of it is text."""

from __future__ import annotations

from typing import Any

import pytest

from drivetrain.core.errors import InvalidRequest
from drivetrain.core.messages import parse_messages

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

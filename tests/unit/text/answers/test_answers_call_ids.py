"""The ids that a form has in its prompts, and which call a result answers."""

from __future__ import annotations

import re
from typing import Any

from drivetrain.core.messages import Message, parse_messages
from drivetrain.text.answered import answered
from drivetrain.text.answers.call_ids import CallIds, with_own_ids
from drivetrain.text.answers.table import FORMS


def calls(*ids: str) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": i, "function": {"name": f"f{i[-1:]}"}} for i in ids]}


def result(call_id: str | None = None) -> dict[str, Any]:
    return {"role": "tool", "content": "x", "tool_call_id": call_id}


USER = {"role": "user", "content": "x"}
CHAT = parse_messages(
    [USER, calls("call_a", "call_b"), result("call_b"), result("call_a"), USER, calls("call_c"), result("call_c")]
)


def ids(messages: tuple[Message, ...]) -> list[Any]:
    return [[call.id for call in m.tool_calls] or m.tool_call_id for m in messages if m.role != "user"]


def test_which_forms_have_their_own() -> None:
    own = {name: form.call_ids for name, form in FORMS.items() if form.call_ids is not CallIds.ANY}
    assert own == {"kimi": CallIds.NUMBERED, "mistral": CallIds.NINE_CHARS, "mistral-list": CallIds.NINE_CHARS}


def test_other_forms_leave_them_as_they_are() -> None:
    assert with_own_ids(CHAT, CallIds.ANY) == CHAT


def test_kimi_numbers_the_calls_of_a_chat() -> None:
    a, b, c = "functions.fa:0", "functions.fb:1", "functions.fc:2"
    assert ids(with_own_ids(CHAT, CallIds.NUMBERED)) == [[a, b], b, a, [c], c]


def test_mistral_has_nine_characters() -> None:
    first, b, a, second, c = ids(with_own_ids(CHAT, CallIds.NINE_CHARS))
    assert [first, second] == [[a, b], [c]]
    assert len({a, b, c}) == 3
    assert all(re.fullmatch("[a-zA-Z0-9]{9}", one) for one in (a, b, c))
    assert with_own_ids(CHAT, CallIds.NINE_CHARS) == with_own_ids(CHAT, CallIds.NINE_CHARS)
    mistrals = parse_messages([USER, calls("Ab3Ab3Ab3"), result("Ab3Ab3Ab3")])
    assert with_own_ids(mistrals, CallIds.NINE_CHARS) == mistrals


def test_calls_without_ids_get_some() -> None:
    chat = parse_messages([USER, calls("", ""), result(), result(), result()])
    for kind in (CallIds.NUMBERED, CallIds.NINE_CHARS):
        (first, second), *answers = ids(with_own_ids(chat, kind))
        assert answers == [first, second, ""]
        assert first != second


def test_everything_else_stays() -> None:
    chat = parse_messages([USER, {**calls("call_a"), "content": "I look.", "reasoning": "Hm."}, result("call_a")])
    before, after = chat[1], with_own_ids(chat, CallIds.NUMBERED)[1]
    assert (after.content, after.reasoning) == (before.content, before.reasoning)
    assert [(c.name, c.arguments) for c in after.tool_calls] == [(c.name, c.arguments) for c in before.tool_calls]


def test_a_result_answers_the_latest_call_of_its_id() -> None:
    chat = parse_messages([USER, calls("0"), result("0"), USER, calls("1", "0"), result("0"), result(), result("9")])
    assert answered(chat) == {2: 0, 5: 2, 6: 1}

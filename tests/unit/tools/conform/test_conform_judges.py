"""How the cases judge the answers of servers that are not ours: cut off, or long and wrong."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
from test_conform_strange import check, named
from toy_server import Faults, Reply
from wrongs import choices, reword

from drivetrain.tools.conform.answers import ParsedChoice
from drivetrain.tools.conform.calls import ParsedCall
from drivetrain.tools.conform.cases import explosive
from drivetrain.tools.conform.cases.calling import DOOR, made_calls
from drivetrain.tools.conform.survey import SAMPLE_TOKENS
from drivetrain.tools.conform.verdict import Failed, NotRun, Outcome

WHOLE = ParsedCall("1", "set_door", '{"open": true}')
CUT = ParsedCall("2", "set_door", '{"op')


def made(reason: str, text: str, *calls: ParsedCall) -> list[ParsedCall]:
    return made_calls(ParsedChoice(0, text=text, reason=reason, calls=list(calls)), [DOOR])


@pytest.mark.parametrize("text", ["", "I open it."])
def test_a_call_that_is_cut_off_is_not_run(text: str) -> None:
    with pytest.raises(NotRun, match="not complete"):
        made("length", text, CUT)
    assert made("length", text, WHOLE, CUT) == [WHOLE]


def test_text_in_place_of_calls_fails_even_if_it_is_cut_off() -> None:
    for reason, text in (("length", "I open it."), ("stop", "I open it."), ("stop", "")):
        with pytest.raises(Failed, match="no tool is called"):
            made(reason, text)
    with pytest.raises(NotRun):
        made("length", "")


@pytest.mark.parametrize(("code", "outcome"), [("a" * 10_000, Outcome.FAIL), ("a" * 10_000 + "b", Outcome.PASS)])
async def test_a_long_answer_to_a_pattern_that_backtracks_is_judged(code: str, outcome: Outcome) -> None:
    def reply(path: str, body: Any, made: Reply) -> Reply:
        if "response_format" not in body:
            return made
        message = {"role": "assistant", "content": f'{{"code": "{code}"}}'}
        return Reply(200, {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

    report = await check(named("structured.explosive_pattern"), Faults(reply=reply))
    assert [result.outcome for result in report.results] == [outcome], report.results[0].reason


def test_it_is_judged_by_an_equal_pattern() -> None:
    texts = ["".join(letters) for n in range(8) for letters in itertools.product("abc", repeat=n)]
    sent, judge = (
        [text for text in texts if re.fullmatch(pattern, text)] for pattern in (explosive._BACKTRACKS, explosive._EQUAL)
    )
    assert sent == judge
    assert judge[:2] == ["ab", "aab"]


@pytest.mark.parametrize(
    ("others", "outcome"), [(0, Outcome.PASS), (1, Outcome.PASS), (3, Outcome.PASS), (10**6, Outcome.NOT_RUN)]
)
async def test_a_first_answer_may_be_another_one(others: int, outcome: Outcome) -> None:
    """As with a server that has kept the prompt's beginning since, and so rounds otherwise. After three, another prompt
    is taken."""
    numbers = itertools.count()

    def change(choice: dict[str, Any], body: Any) -> None:
        if body.get("max_tokens") == SAMPLE_TOKENS and (number := next(numbers)) < others:
            reword(choice, lambda text: f"{number}{text}")

    report = await check(named("completions.ids"), choices(change)())
    assert [result.outcome for result in report.results] == [outcome], report.results[0].reason

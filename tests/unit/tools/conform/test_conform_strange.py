"""Answers of a good server with one field missing, null, empty or of another kind: the run always comes to its end."""

from __future__ import annotations

import asyncio
import copy
import itertools
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_server import KEY, Faults, Reply, Toy, serving

from drivetrain.http.address import Address
from drivetrain.tools.conform import runner
from drivetrain.tools.conform.case import Area, Case
from drivetrain.tools.conform.cases import ALL
from drivetrain.tools.conform.client import Client
from drivetrain.tools.conform.report import ConformReport
from drivetrain.tools.conform.runner import STRANGE
from drivetrain.tools.conform.verdict import Outcome

MISSING: Final = object()
ODD: tuple[Any, ...] = (MISSING, None, [], {}, "é", True, 7.5, 10**400, [None], [10**400], ["x"])
ODDER: tuple[Any, ...] = ("", "\ud800", -1, -(10**400), float("nan"), float("inf"), [[]], [{}], {"x": 1})
NUMBERS = (
    "logprobs", "content", "top_logprobs", "token", "logprob", "bytes", "tokens", "token_logprobs", "text_offset",
    "data", "embedding", "index", "usage", "max_model_len",
)  # fmt: skip
"""Fields that hold numbers or lists of them."""

OTHERS = (
    "id", "object", "created", "owned_by", "model", "choices", "message", "delta", "text", "role", "finish_reason",
    "prompt_tokens", "completion_tokens", "total_tokens", "tool_calls", "function", "arguments", "name", "token_ids",
    "prompt_token_ids", "error", "param", "code", "type", "version", "running", "count", "prompt", "reasoning_content",
    "completion_tokens_details", "reasoning_tokens",
)  # fmt: skip
SLOW = {"images.private", "errors.large_headers", "streaming.deadline"}
READ = {"chat.developer", "images.png", "errors.over_context"}
QUICK = [case for case in ALL if case.area is not Area.CANCEL and case.id not in SLOW]


def shown(odd: Any) -> str:
    return "missing" if odd is MISSING else repr(odd)[:12]


def with_odd(document: Any, name: str, odd: Any) -> None:
    """Wherever a field has this name, in place."""
    for value in document.values() if isinstance(document, dict) else document if isinstance(document, list) else []:
        with_odd(value, name, odd)
    if isinstance(document, dict) and name in document:
        if odd is MISSING:
            del document[name]
        else:
            document[name] = copy.deepcopy(odd)


def strange(name: str, odd: Any, every: int = 1) -> Faults:
    """In each answer, or in each second or third one."""
    numbers = itertools.count(1)

    def reply(path: str, body: Any, made: Reply) -> Reply:
        if next(numbers) % every == 0:
            made.document, made.events = copy.deepcopy((made.document, made.events))
            with_odd(made.document, name, odd)
            with_odd(made.events, name, odd)
        return made

    return Faults(reply=reply)


async def conform(toy: Toy, cases: list[Case], model: str = "toy") -> ConformReport:
    report = ConformReport(url=toy.url, model=model, began="", version="")
    await runner.run(Client(Address.parse(toy.url), KEY, 8.0), model, cases, report, lambda what, share: None)
    return report


async def check(cases: list[Case], faults: Faults) -> ConformReport:
    """All cases have their result, and none met what it does not know."""
    async with serving(faults) as toy:
        report = await conform(toy, cases)
    assert report.complete
    assert [result.case for result in report.results] == cases
    assert [(r.case.id, r.reason) for r in report.results if r.reason.startswith(STRANGE)] == []
    return report


@pytest.mark.parametrize("odd", ODD, ids=shown)
async def test_numbers_of_any_form_are_read(odd: Any) -> None:
    cases = [case for case in QUICK if case.area in {Area.LOGPROBS, Area.EMBEDDINGS} or case.id in READ]
    told = [name for name in NUMBERS if (await check(cases, strange(name, odd))).of(Outcome.FAIL)]
    assert len(told) >= 5, f"only {told} made a difference"


@pytest.mark.slow
@settings(max_examples=15)
@given(st.sampled_from(NUMBERS + OTHERS), st.sampled_from(ODD + ODDER), st.integers(1, 3))
def test_a_run_comes_to_its_end_on_any_server(name: str, odd: Any, every: int) -> None:
    asyncio.run(check(QUICK, strange(name, odd, every)))


def named(*ids: str) -> list[Case]:
    return [case for case in ALL if case.id in ids]


async def test_where_no_alternatives_come_that_is_one_failure() -> None:
    others = ("logprobs.likeliest", "logprobs.probabilities", "logprobs.raw")
    report = await check(named("logprobs.shape", *others), strange("top_logprobs", []))
    found = {result.case.id: result.outcome for result in report.results}
    assert found == {"logprobs.shape": Outcome.FAIL} | dict.fromkeys(others, Outcome.NOT_RUN)


async def test_a_list_without_vectors_is_told() -> None:
    ids = ("embeddings.base64", "embeddings.dimension", "embeddings.dimensions", "embeddings.usage")
    report = await check(named(*ids), strange("data", []))
    assert {result.reason for result in report.results} == {f"inputs: {n}, vectors that came back: 0" for n in (1, 4)}


async def test_a_context_that_nobody_can_fill_is_not_filled() -> None:
    report = await check(named("errors.over_context", "embeddings.too_long"), strange("max_model_len", 10**12))
    assert {result.outcome for result in report.results} == {Outcome.NOT_RUN}
    assert all("too long to fill" in result.reason for result in report.results)


async def test_a_model_of_any_name_is_asked_for() -> None:
    async with serving() as toy:
        report = await conform(toy, named("models.retrieve", "models.named"), "half a pair: \ud800")
    assert report.complete
    assert [(result.outcome, STRANGE in result.reason) for result in report.results] == [
        (Outcome.FAIL, False),
        (Outcome.NOT_OFFERED, False),
    ]

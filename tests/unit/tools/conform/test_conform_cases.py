"""Every case passes on a server that keeps the contract, and fails, in the right words, on one that does not."""

from __future__ import annotations

import re
from typing import Any

import pytest
from toy_rules import CONTEXT
from toy_server import KEY, Faults, Reply, Toy, serving
from wrong_faces import AGENTS, FACES
from wrong_receipts import RECEIPTS
from wrong_rest import ERRORS, EXTRAS, LEAVING, REST
from wrong_structure import STRUCTURE
from wrong_texts import ANSWERS, MODELS, STOPS, STREAMS
from wrong_tools import REASONING, ROUNDS, TOOLS
from wrong_values import LOGPROBS, PARAMETERS, REPAIRS, USAGE
from wrongs import Wrong, ignores

from drivetrain.http.address import Address
from drivetrain.tools.conform import runner
from drivetrain.tools.conform.case import Area
from drivetrain.tools.conform.cases import ALL, cancel, errors, streaming
from drivetrain.tools.conform.client import Client
from drivetrain.tools.conform.report import ConformReport
from drivetrain.tools.conform.survey import UNKNOWN_FIELD
from drivetrain.tools.conform.verdict import Outcome

WRONG = (
    *MODELS, *ANSWERS, *STREAMS, *STOPS, *PARAMETERS, *REPAIRS, *LOGPROBS, *USAGE, *ERRORS, *LEAVING, *EXTRAS, *REST,
    *STRUCTURE, *TOOLS, *ROUNDS, *REASONING, *FACES, *AGENTS, *RECEIPTS,
)  # fmt: skip


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy is quick: nothing need be given the time that real servers are given."""
    for module, name, value in (
        (cancel, "FREE_WITHIN_S", 0.5), (cancel, "WORTH_S", 1.0), (errors, "QUICK_S", 1.0),
        (streaming, "GRACE_S", 0.5), (streaming, "LONG_TOKENS", 600),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)


async def conform(toy: Toy, *ids: str, timeout_s: float = 8.0) -> ConformReport:
    """Asked about these cases, or about all."""
    report = ConformReport(url=toy.url, model="toy", began="", version="")
    cases = [case for case in ALL if not ids or case.id in ids]
    await runner.run(Client(Address.parse(toy.url), KEY, timeout_s), "toy", cases, report, lambda what, share: None)
    return report


async def test_a_good_server_passes_everything() -> None:
    async with serving() as toy:
        report = await conform(toy)
    assert [(r.case.id, r.reason) for r in report.results if r.outcome is not Outcome.PASS] == []
    assert len(report.results) == len(ALL)
    assert report.complete


@pytest.mark.parametrize("wrong", WRONG, ids=[wrong.name for wrong in WRONG])
async def test_a_wrong_server_is_told_so(wrong: Wrong, hasty: None) -> None:
    async with serving(wrong.make()) as toy:
        report = await conform(toy, *wrong.says, timeout_s=10.0)
    found = {result.case.id: (result.outcome, result.reason) for result in report.results}
    assert found.keys() == wrong.says.keys()
    for case, words in wrong.says.items():
        outcome, reason = found[case]
        assert outcome is Outcome.FAIL, (case, outcome, reason)
        assert re.search(words, reason), (case, reason)
    assert all(result.exchanges for result in report.results)


async def test_a_context_that_is_not_read_in_time_is_no_failure() -> None:
    def slow(path: str, body: Any, made: Reply) -> Reply:
        made.step_s = 1.0 if isinstance(body, dict) and len(str(body)) > CONTEXT else 0.0
        return made

    async with serving(Faults(reply=slow)) as toy:
        report = await conform(toy, "parameters.overflow", timeout_s=0.5)
    (result,) = report.results
    assert result.outcome is Outcome.NOT_RUN
    assert f"{CONTEXT} tokens is not read in time" in result.reason


async def test_where_unknown_fields_are_ignored_that_is_one_failure() -> None:
    """Only of fields that OpenAI's API does not have, and only where they were taken without a word."""
    cases = ("parameters.min_p", "refusals.min_p_above_1", "parameters.top_p", "parameters.unknown")
    async with serving(ignores("min_p", "top_p", UNKNOWN_FIELD)()) as toy:
        report = await conform(toy, *cases)
    found = {result.case.id: result.outcome for result in report.results}
    assert found == dict.fromkeys(cases[:2], Outcome.NOT_OFFERED) | dict.fromkeys(cases[2:], Outcome.FAIL)
    assert all("parameters.unknown" in result.reason for result in report.of(Outcome.NOT_OFFERED))


async def test_where_all_is_accepted_the_form_of_errors_cannot_be_judged() -> None:
    """That it is accepted is one failure each, in the area `refusals`."""
    cases = [f"errors.{name}" for name in ("shape", "status", "param", "no_leak", "unknown_model_code")]
    lax = Faults(request=lambda path, body: {"messages": [{"role": "user", "content": "x"}]} | {"model": "toy"})
    async with serving(lax) as toy:
        report = await conform(toy, *cases)
    assert {result.case.id: result.outcome for result in report.results} == dict.fromkeys(cases, Outcome.NOT_RUN)


async def test_prompt_token_ids_that_nobody_knows_are_not_offered() -> None:
    async with serving(ignores("prompt_token_ids")()) as toy:
        report = await conform(toy, "completions.prompt_token_ids")
    (result,) = report.results
    assert (result.outcome, "prompt is refused by name" in result.reason) == (Outcome.NOT_OFFERED, True), result.reason


async def test_a_long_prompt_that_is_refused_all_the_same_is_one_failure() -> None:
    async with serving(ignores("overflow", UNKNOWN_FIELD)()) as toy:
        report = await conform(toy, "parameters.overflow", "parameters.unknown")
    found = {result.case.id: result.outcome for result in report.results}
    assert found == {"parameters.overflow": Outcome.NOT_OFFERED, "parameters.unknown": Outcome.FAIL}


@pytest.mark.parametrize(
    ("field", "own", "others"),
    [
        ("echo", "completions.echo", ("completions.echo_alone", "completions.list_order", "logprobs.completions_echo")),
        ("logprobs", "logprobs.shape", ("logprobs.count", "logprobs.bytes", "logprobs.raw", "logprobs.streamed")),
    ],
)
async def test_where_a_field_is_ignored_only_its_own_case_fails(field: str, own: str, others: tuple[str, ...]) -> None:
    async with serving(ignores(field, f"top_{field}")()) as toy:
        report = await conform(toy, own, *others)
    found = {result.case.id: result.outcome for result in report.results}
    assert found == {own: Outcome.FAIL} | dict.fromkeys(others, Outcome.NOT_RUN)


async def test_where_pictures_are_ignored_that_is_one_failure() -> None:
    def blind(path: str, body: Any) -> Any:
        if "image_url" in str(body):
            body["messages"][0]["content"] = body["messages"][0]["content"][0]["text"]
        return body

    async with serving(Faults(request=blind)) as toy:
        report = await conform(toy, "images.png", "images.corrupt")
    assert [result.outcome for result in report.results] == [Outcome.FAIL, Outcome.NOT_RUN]


@pytest.mark.parametrize(("status", "outcome"), [(400, Outcome.NOT_OFFERED), (500, Outcome.FAIL)])
async def test_how_a_model_that_does_not_see_says_so_is_asked_once(status: int, outcome: Outcome) -> None:
    def blind(path: str, body: Any, made: Reply) -> Reply:
        error = {"message": "image input is not supported", "type": "e", "param": None, "code": None}
        return Reply(status, {"error": error}) if "image_url" in str(body) else made

    async with serving(Faults(reply=blind)) as toy:
        report = await conform(toy, "images.png", "images.corrupt")
    assert [result.outcome for result in report.results] == [outcome, Outcome.NOT_OFFERED]


def test_every_case_can_fail() -> None:
    assert {case.id for case in ALL} == {case for wrong in WRONG for case in wrong.says}


def test_ids_are_names_and_areas_are_whole() -> None:
    ids = [case.id for case in ALL]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(rf"{case.area}\.[a-z0-9_]+", case.id) for case in ALL)
    assert {case.area for case in ALL} == set(Area)
    assert all(case.asks and case.holds and case.offered for case in ALL)

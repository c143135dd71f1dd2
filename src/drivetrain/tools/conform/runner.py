"""Run the cases one after the other, so that none depends on what else is running."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from drivetrain.core.errors import InvalidSetting
from drivetrain.tools.conform.case import Case
from drivetrain.tools.conform.client import Broken, Client, Unreachable
from drivetrain.tools.conform.exchange import RecordedExchange, Shown, hide, show
from drivetrain.tools.conform.reading import brief, message_of
from drivetrain.tools.conform.report import OVER, CaseResult, ConformReport
from drivetrain.tools.conform.requester import Requester
from drivetrain.tools.conform.survey import UNKNOWN_FIELD, Survey
from drivetrain.tools.conform.trial import Trial
from drivetrain.tools.conform.verdict import Outcome, Verdict

SHOWN_FIRST, SHOWN_LAST = 1, 4
IGNORED = "the server accepts every unknown field (parameters.unknown), and this one has no effect"
GONE = "the server can no longer be reached"
STRANGE = "the case met something unexpected"

Progress = Callable[[str, float | None], None]


async def find_model(client: Client, given: str | None, key_variables: Sequence[str]) -> str:
    """The model to ask for. Raises `InvalidSetting` if there is no server, no access or no such model."""
    requester = Requester(client, given or "")
    try:
        listing = await requester.get("/models")
        names = _names(listing)
        if listing.status in {401, 403}:
            raise InvalidSetting(
                f"{client.address} answers with status {listing.status} ({message_of(listing)}); "
                f"put its key into {' or '.join(key_variables)}"
            )
        if given is None:
            return _only(names, client)
        if given not in names and await _is_unknown(requester):
            has = f"; it has {brief(names, 300)}" if names else ""
            raise InvalidSetting(f"there is no model {given!r} at {client.address}{has}", param="model")
    except Broken as exc:
        raise InvalidSetting(str(exc)) from exc
    return given


def _only(names: list[str], client: Client) -> str:
    if len(names) != 1:
        has = f"it has {brief(names, 300)}" if names else "it does not list any"
        raise InvalidSetting(f"choose a model of {client.address} with --model: {has}", param="model")
    return names[0]


def _names(listing: RecordedExchange) -> list[str]:
    data = listing.document.get("data")
    found = [item.get("id") for item in data if isinstance(item, dict)] if isinstance(data, list) else []
    return [name for name in found if isinstance(name, str)]


async def _is_unknown(requester: Requester) -> bool:
    """Whether every endpoint answers 404."""
    bodies: dict[str, dict[str, Any]] = {
        "/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
        "/completions": {"prompt": "x"},
        "/embeddings": {"input": "x"},
    }
    for path, fields in bodies.items():
        if (await requester.post(path, {"model": requester.model, **fields})).status != 404:
            return False
    return True


async def run(
    client: Client,
    model: str,
    cases: Sequence[Case],
    report: ConformReport,
    progress: Progress,
    known: Survey | None = None,
    within_s: float | None = None,
) -> None:
    """Results are added to the report as they come, so that an interrupted run keeps what it found.

    `known` is what an earlier run has found out about the server. What is not over `within_s` is not run.
    """
    known = known or Survey(client, model)
    began = time.perf_counter()
    progress("asking the server what it is", 0.0)
    with contextlib.suppress(Broken, TimeoutError):
        async with asyncio.timeout(within_s):
            report.about = await known.about()
    for done, case in enumerate(cases):
        progress(f"checking {case.area}", done / len(cases))
        left = None if within_s is None else within_s - (time.perf_counter() - began)
        try:
            async with asyncio.timeout(left):
                result, alive = await _run_one(case, Trial(client, model, known))
        except TimeoutError:
            result, alive = CaseResult(case=case, outcome=Outcome.NOT_RUN, reason=OVER), True
        report.results.append(result)
        report.took_s = time.perf_counter() - began
        if not alive:
            report.results += [
                CaseResult(case=other, outcome=Outcome.NOT_RUN, reason=GONE) for other in cases[done + 1 :]
            ]
            break
    report.complete = True


async def _run_one(case: Case, trial: Trial) -> tuple[CaseResult, bool]:
    """The result, and whether the server still answers."""
    began = time.perf_counter()
    outcome, reason = Outcome.PASS, ""
    alive: bool | None = True  # None: not known yet
    try:
        if case.needs is not None:
            await trial.known.offers(case.needs)
        await case.check(trial)
    except Verdict as exc:
        outcome, reason = exc.outcome, exc.reason
        if outcome is Outcome.FAIL and case.extra and await _is_ignored(trial):
            outcome, reason = Outcome.NOT_OFFERED, f"{IGNORED}: {reason}"
    except Unreachable as exc:
        outcome, reason, alive = Outcome.FAIL, f"{GONE}: {exc}", False
    except Broken as exc:
        outcome, reason, alive = Outcome.FAIL, str(exc), None
    except Exception as exc:  # noqa: BLE001 - an unforeseen answer must not cost all other results
        outcome, reason = Outcome.FAIL, f"{STRANGE}: {type(exc).__name__}: {exc}"[:300]
    result = CaseResult(
        case=case,
        outcome=outcome,
        reason=hide(reason, trial.client.key),
        took_s=round(time.perf_counter() - began, 3),
        exchanges=_kept(trial.exchanges, trial.client.key) if outcome is Outcome.FAIL else (),
    )
    return result, await _is_alive(trial) if alive is None else alive


async def _is_ignored(trial: Trial) -> bool:
    """Whether the server accepts every unknown field too: that is one failure, not one per field."""
    if any(exchange.status != 200 for exchange in trial.exchanges):
        return False
    try:
        return await trial.known.takes(await trial.known.text_api(), UNKNOWN_FIELD, 1)
    except (Verdict, Broken):
        return False


def _kept(exchanges: Sequence[RecordedExchange], key: str) -> tuple[Shown, ...]:
    """The first exchange, which shows how it should be, and the last ones."""
    chosen = [*exchanges[:SHOWN_FIRST], *exchanges[SHOWN_FIRST:][-SHOWN_LAST:]]
    return tuple(show(exchange, key) for exchange in chosen)


async def _is_alive(trial: Trial) -> bool:
    try:
        await trial.get("/models")
    except Broken as exc:
        return not isinstance(exc, Unreachable)
    return True

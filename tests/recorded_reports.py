"""Reports of made-up runs, for the tests of the pages: each kind in full, and with hostile texts in every place."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate

from drivetrain.cli.terminal.values import plain
from drivetrain.core.engine import WeightsFormat
from drivetrain.core.receipt import ChoiceRecord, PromptRecord, Receipt
from drivetrain.tools.bench.ceilings import Ceilings
from drivetrain.tools.bench.outcome import Failure, RequestOutcome, Round
from drivetrain.tools.bench.page import page as bench_page
from drivetrain.tools.bench.report import BenchReport, NamedTarget, make_level, notes
from drivetrain.tools.bench.session import Played
from drivetrain.tools.bench.target import TargetFacts
from drivetrain.tools.bench.weights import Weights
from drivetrain.tools.bench.workload import Closed, Workload
from drivetrain.tools.conform.case import ALWAYS, Area, Case
from drivetrain.tools.conform.exchange import Shown
from drivetrain.tools.conform.page import page as conform_page
from drivetrain.tools.conform.report import CaseResult, ConformReport
from drivetrain.tools.conform.verdict import Outcome
from drivetrain.tools.diff.compare import Alternative, AnswerParts, AnswerToken, Parting, RecordedAnswer
from drivetrain.tools.diff.page import page as diff_page
from drivetrain.tools.diff.record import Questions
from drivetrain.tools.diff.report import ComparedSide, DiffReport, document
from drivetrain.tools.doctor.findings import findings
from drivetrain.tools.doctor.html_page import page as doctor_page
from drivetrain.tools.doctor.report import HistogramTimes, Memory, ModelReport, Refusal, ServerKind, ServerReport
from drivetrain.tools.replay import report as replay
from drivetrain.tools.replay.page import page as replay_page
from drivetrain.tools.replay.verdict import NOT_REPLAYED, ChoiceVerdict, Replayed, Verdict
from written_page import HOSTILE

ORIGIN = {"Machine": "AMD EPYC 7B13, 2 cores, 24.0 GB", "Versions": "drivetrain 1.0, python 3.11.2, torch 2.13.0"}
LONG = "w" * 3000


# bench


def rounds(streams: int, speed: float, first_s: float, *, seed: int = 1, failures: int = 0) -> list[Round]:
    """Three rounds of answers of 24 tokens, with gaps that spread as they do."""
    rng = random.Random(f"{seed}/{streams}/{speed}")
    made = []
    for _ in range(3):
        outcomes = []
        for i in range(streams * 2):
            times = [first_s * rng.lognormvariate(0, 0.35), *(rng.lognormvariate(0, 0.25) / speed for _ in range(23))]
            events = tuple(accumulate(times))
            failure = Failure("overloaded", "no room") if i < failures else None
            outcomes.append(
                RequestOutcome(
                    started=0.0,
                    ended=events[-1],
                    events=events,
                    prompt_tokens=33,
                    completion_tokens=24,
                    failure=failure,
                )
            )
        ended = 2 * max(outcome.ended for outcome in outcomes)
        made.append(Round(level=Closed(streams, 2), started=0.0, ended=ended, outcomes=tuple(outcomes)))
    return made


def bench_report(
    *labels: str, streams: tuple[int, ...] = (1, 4, 16), failures: int = 0, model: str = "m"
) -> BenchReport:
    ceilings = Ceilings(
        memory_gb_per_s=20.0, product_gflop_per_s=100.0, measured_with="torch 2.13", device="CPU", dtype="float32"
    )
    weights = Weights(134_000_000, 270_000_000, WeightsFormat.GGUF)
    facts = TargetFacts(
        kind="in this process", model=model, engine="native", device="cpu", dtype="float32", weights=weights
    )
    targets = [NamedTarget(label=label, facts=facts) for label in labels]
    work = Workload(prompt_tokens=32, max_tokens=24, shared_prefix=0, seed=7, rounds=3, timeout_s=60.0)
    levels = []
    for count in streams:
        played = [
            rounds(count, speed=(60 - 25 * i) / count**0.4, first_s=0.04 * (1 + i) * count**0.6, failures=failures)
            for i in range(len(labels))
        ]
        levels.append(make_level(Played(Closed(count, 2), tuple(played)), targets, ceilings, work))
    machine = {
        "cpu": {"count": 2, "model": "AMD EPYC 7B13", "usable": 2},
        "memory": {"total_bytes": 24_000_000_000},
        "versions": {"drivetrain": "1.0", "python": "3.11.2"},
        "commit": "abc1234",
    }
    return BenchReport(
        command="drivetrain bench m --streams 1,4,16",
        began="2026-01-01T12:00:00+00:00",
        machine=machine,
        workload=work,
        targets=tuple(targets),
        ceilings=ceilings,
        levels=tuple(levels),
        notes=tuple(notes(levels, targets, work)),
        complete=True,
    )


# conform


async def _check(_: object) -> None: ...


def conform_report(text: str = "", results: int = 120) -> ConformReport:
    """Every outcome in several areas. `text` is added to whatever a server could say."""
    rng, made = random.Random(3), []
    areas = list(Area)
    for i in range(results):
        area = areas[i * len(areas) // results]
        outcome = rng.choices(list(Outcome), (85, 4, 6, 5))[0]
        case = Case(
            id=f"{area}.case_{i}", area=area, asks="an answer of one token, whole and streamed",
            holds="the same text both ways, and usage that adds up", offered=ALWAYS, check=_check,
        )  # fmt: skip
        reason = "" if outcome is Outcome.PASS else f"streamed: the text ends with 'th', a part of the stop {text}"
        request = 'POST /v1/chat/completions\ncontent-type: application/json\n\n{"model": "m", "max_tokens": 1}'
        reply = f'content-type: text/event-stream\n\ndata: {{"choices": []}}\n\ndata: [DONE]{text * 3}'
        shown = (Shown(request + text, 200, reply, 0.031), Shown(request, 0, "", 9.0))
        exchanges = shown if outcome is Outcome.FAIL else ()
        made.append(CaseResult(case=case, outcome=outcome, reason=reason, took_s=0.1, exchanges=exchanges))
    return ConformReport(
        url="http://127.0.0.1:8000/v1", model=f"smollm2-135m{text}", began="2026-01-01T12:00:00+00:00", version="1.0",
        about={"server": "uvicorn", "engine": f"native{text}", "dtype": "float32"}, results=made, took_s=42.5,
        complete=True,
    )  # fmt: skip


# diff


def token(token_id: int, text: str, logprob: float, *others: tuple[int, str, float]) -> AnswerToken:
    top = tuple(Alternative(*one) for one in ((token_id, text, logprob), *others))
    return AnswerToken(token_id, text, logprob, tuple(sorted(top, key=lambda one: -one.logprob)))


def diff_report(text: str = "", prompts: int = 6, sides: int = 2) -> DiffReport:
    """Prompts that agree, part, tie, end early and are tokenized differently, in turn."""
    asked = tuple(f"The capital of country number {i} is{text}" for i in range(prompts))
    return DiffReport(
        version="1.0",
        began="2026-01-01T12:00:00+00:00",
        questions=Questions(prompts=asked, num_tokens=32, num_top=5),
        tolerance=0.001,
        sides=tuple(_side(i, text, prompts) for i in range(sides)),
    )


def _side(number: int, text: str, prompts: int) -> ComparedSide:
    return ComparedSide(
        label=["native", "llamacpp", "transformers"][number] + text,
        engine="native", model="smollm2-135m", weights=WeightsFormat.GGUF, dtype="float32" if number else "bfloat16",
        device="cpu", settings={}, versions={}, notes=(f"a note{text}",), answer_form="generic",
        answers=tuple(_answer(i, number, text) for i in range(prompts)),
    )  # fmt: skip


def _answer(prompt: int, side: int, text: str) -> RecordedAnswer:
    common = [token(10 + i, f" word{i}", -0.2 * (1 + i) - 0.003 * side * (i + 1)) for i in range(prompt + 1)]
    two = [(50, f" Paris{text}", -1.2), (51, " the", -1.2 if prompt % 5 == 2 else -1.9), (52, " a\n", -3.0)]
    first, second, *rest = two if side == 0 else [two[1], two[0], two[2]]
    logprobs = [two[0][2], two[1][2]]
    parted = token(first[0], first[1], logprobs[0], (second[0], second[1], logprobs[1]), *rest)
    places = {0: common, 1: [*common, parted], 2: [*common, parted], 3: common[: len(common) - side]}
    ids = (1, 2, side) if prompt % 5 == 4 else (1, 2)
    return RecordedAnswer(
        ids, tuple(places.get(prompt % 5, common)), AnswerParts(content="".join(t.token for t in common))
    )


def long_answer(report: DiffReport, chars: int) -> DiffReport:
    """The same with one token that is so long."""
    side = report.sides[0]
    place = replace(side.answers[0].places[0], token="x" * chars)
    first = replace(side.answers[0], places=(place, *side.answers[0].places[1:]))
    return replace(report, sides=(replace(side, answers=(first, *side.answers[1:])), *report.sides[1:]))


# replay


def replay_report() -> replay.ReplayReport:
    """Receipts with every verdict."""
    on = replay.ReplayedOn(
        label="llamacpp", model="smollm2-135m", engine="llamacpp", device="cpu", dtype="bfloat16",
        weights="sha256:2", versions={}, tolerance=0.001,
    )  # fmt: skip
    results = tuple(_replayed(i, verdict) for i, verdict in enumerate((*Verdict, Verdict.IDENTICAL)))
    return replay.ReplayReport(
        version="1.0", began="2026-01-01T12:00:00+00:00", num_top=3, groups=(replay.ReplayedGroup(on, results),)
    )


def _replayed(number: int, verdict: Verdict) -> Replayed:
    receipt = Receipt(
        form=1, request_id=f"chatcmpl-{number:024x}", created=1, model="smollm2-135m", weights="sha256:1",
        engine="native", device="cpu", dtype="float32", settings={}, versions={}, family="chatml", template=None,
        prompt=PromptRecord(sha256="0" * 64, tokens=9), parameters={}, constraint=None, tools=None,
        choices=(ChoiceRecord(0, (1, 2), "stop"),),
    )  # fmt: skip
    if verdict in NOT_REPLAYED:
        return Replayed(f"receipts/{number}.json", receipt, verdict, "this server has another model")
    parting = Parting(token(1, " Paris", -0.2, (2, " the", -1.5)), token(2, " the", -0.3, (1, " Paris", -1.4)))
    choice = (
        ChoiceVerdict(0, verdict, 1, parting, "it took another token") if verdict is not Verdict.IDENTICAL else None
    )
    return Replayed(f"receipts/{number}.json", receipt, verdict, choices=(choice,) if choice else ())


# doctor


def doctor_report() -> ServerReport:
    queue, first = HistogramTimes(100, 0.001, 12.0, 160.0), HistogramTimes(90, 0.1, 2.0, 160.0)
    small = ModelReport(
        name="small", state="ready", aliases=("alias",), engine="native", device="cpu", dtype="float32",
        context_length=2048, engine_alive=True, loads=1, unloads=0, running=2, max_running=4, waiting=1, max_waiting=8,
        since_progress_s=0.5, endings={"finished": 80, "overloaded": 20}, answers={"stop": 70, "length": 10},
        queue=queue, first_token=first, between_tokens=HistogramTimes(900, 0.03, 0.2, 160.0), prompt_tokens=5000,
        cached_tokens=500, completion_tokens=9000, kv_used=0.61, preemptions=0, restarts=0,
    )  # fmt: skip
    report = ServerReport(
        url="http://127.0.0.1:8000", kind=ServerKind.OURS, local=True, encrypted=False, sent_key=False, version="1.0",
        ready=True, latency_s=0.002, uptime_s=7300.0, tokens_per_s=31.5,
        models=(small, ModelReport(name="large", state="unloaded")),
        refusals=(Refusal("overloaded", "", 20), Refusal("invalid_request", "temperature", 4)),
        memory=(Memory("cpu", 4_100_000_000, 0, 16_000_000_000, 6_200_000_000),),
    )  # fmt: skip
    return replace(report, findings=findings(report))


# All pages


def bench_text(report: BenchReport) -> str:
    return bench_page(report, ORIGIN, plain(report))


def diff_text(report: DiffReport) -> str:
    return diff_page(report, ORIGIN, plain(document(report)))


def hostile_bench() -> BenchReport:
    made = bench_report(HOSTILE, LONG, failures=1, model=HOSTILE + LONG)
    return replace(made, command=HOSTILE, notes=(HOSTILE, LONG))


PAGES: dict[str, Callable[[], str]] = {
    "bench": lambda: bench_text(bench_report("native")),
    "bench-against": lambda: bench_text(bench_report("native", "llamacpp", failures=1)),
    "bench-once": lambda: bench_text(bench_report("native", "llamacpp", streams=(4,))),
    "conform": lambda: conform_page(conform_report(), ORIGIN),
    "diff": lambda: diff_text(diff_report()),
    "diff-three": lambda: diff_text(diff_report(sides=3)),
    "doctor": lambda: doctor_page(doctor_report(), "2026-01-01T12:00:00+00:00", ORIGIN, plain(doctor_report())),
    "replay": lambda: replay_page(replay_report(), ORIGIN, plain(replay.document(replay_report()))),
    "hostile-bench": lambda: bench_text(hostile_bench()),
    "hostile-conform": lambda: conform_page(conform_report(f"{HOSTILE} {LONG}", results=12), ORIGIN),
    "hostile-diff": lambda: diff_text(diff_report(f"{HOSTILE} {LONG}", sides=3)),
}

"""A worker on the fake engine, whose delays are known."""

from __future__ import annotations

import asyncio
import time

import pytest
from bench_rigs import fake_worker, workload

from drivetrain.assembly import Worker
from drivetrain.core.errors import EngineFailed
from drivetrain.tools.bench.ceilings import NotMeasured
from drivetrain.tools.bench.in_process import InProcess
from drivetrain.tools.bench.report import NamedTarget, make_level
from drivetrain.tools.bench.session import BenchSide, Session
from drivetrain.tools.bench.target import TargetFacts
from drivetrain.tools.bench.workload import Closed

FACTS = TargetFacts(kind="in this process", model="fake")


def target(worker: Worker, *, chat: bool = True) -> InProcess:
    return InProcess(worker, label="fake", facts=FACTS, chat=chat)


async def test_scripted_delays_are_what_is_measured() -> None:
    """60 ms to the first token and 10 ms from one to the next; a busy machine only makes it slower."""
    async with fake_worker(first_delay_s=0.06, step_delay_s=0.01) as worker:
        session = Session([BenchSide(target(worker))], [Closed(4)], workload(max_tokens=16))
        await session.prepare()
        began = time.monotonic()
        await session.run(lambda doing, share: None)
        took_s = time.monotonic() - began
    named = NamedTarget(label="fake", facts=FACTS)
    (figures,) = make_level(session.played[0], [named], NotMeasured(""), workload(max_tokens=16)).sides
    first, between, answer = figures.first_token_s, figures.between_events_s, figures.answer_s
    assert (first.count, between.count, answer.count) == (8, 8 * 15, 8)
    assert first.p50 is not None
    assert between.p50 is not None
    assert answer.p50 is not None
    assert 0.06 <= first.p50 < answer.p50
    assert 0.0095 <= between.p50 < answer.p50
    assert 0.06 + 15 * 0.01 <= answer.p50 < took_s, "two rounds of four"
    assert figures.tokens_per_s is not None
    assert 4 * 16 / took_s < figures.tokens_per_s.median < 4 * 16 / 0.21
    assert figures.other_lengths == {}
    assert figures.prompt_tokens is not None


async def test_answers_ignore_the_end_that_the_model_would_make() -> None:
    async with fake_worker(text="Hi.", repeat=False) as worker:
        answer = await target(worker).ask("x", 40, None)
    assert (answer.completion_tokens, answer.failure) == (40, None)


@pytest.mark.parametrize("chat", [True, False])
async def test_a_prompt_goes_as_a_message_or_as_it_is(chat: bool) -> None:
    async with fake_worker() as worker:
        answer = await target(worker, chat=chat).ask("word", 1, None)
        alone = 1 + len("word")  # the fake's tokens are bytes, and one for the beginning
    assert (answer.prompt_tokens == alone) is not chat


async def test_failures_are_counted_by_their_code() -> None:
    async with fake_worker({"max_running": 1, "max_waiting": 0}, step_delay_s=0.005) as worker:
        answers = await asyncio.gather(*(target(worker).ask("x", 4, None) for _ in range(3)))
    kinds = sorted(answer.failure.kind if answer.failure else "" for answer in answers)
    assert kinds == ["", "overloaded", "overloaded"]
    async with fake_worker(fault=EngineFailed("it broke"), fault_at_step=2) as worker:
        answer = await target(worker).ask("x", 8, None)
        assert answer.failure is not None
        assert (answer.failure.kind, answer.failure.message) == ("engine_error", "it broke")
        too_long = await target(worker).ask("x", 100_000, None)
        assert too_long.failure is not None
        assert too_long.failure.kind == "context_length_exceeded"


async def test_a_timeout_leaves_nothing_running() -> None:
    async with fake_worker(hang_at_step=2) as worker:
        session = Session([BenchSide(target(worker))], [Closed(3)], workload(timeout_s=0.05))
        with pytest.raises(Exception, match="timeout"):
            await session.run(lambda doing, share: None)
        assert (worker.status.running, worker.status.waiting) == (0, 0)


async def test_its_time_begins_when_it_was_due() -> None:
    async with fake_worker() as worker:
        answer = await target(worker).ask("x", 1, 5.0)
    assert answer.started == 5.0

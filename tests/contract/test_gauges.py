"""The same gauges on every engine: what the worker counts is what its callers saw, whatever became of each request."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from contract.mixed_load import SHORT, check_counts, mixed_load
from contract.rigs import PROMPT, Rig
from contract.test_endings import ENDLESS, read_some, until_idle
from drivetrain.core.errors import (
    ContextOverflow,
    DeadlineExceeded,
    EngineFailed,
    InvalidRequest,
    Overloaded,
)
from drivetrain.core.events import Delta, Finished, Started
from drivetrain.core.stats import Histogram
from drivetrain.worker.worker import EngineWorker


async def test_a_mixed_load_is_counted_exactly(rig: Rig) -> None:
    async with mixed_load(rig) as (worker, seen):
        stats = worker.stats
        assert seen.endings[Overloaded.code] >= 1
        assert seen.endings[DeadlineExceeded.code] == 1
        assert seen.endings[EngineFailed.code] == 1
        assert seen.endings["cancelled"] >= 1
        assert seen.endings[InvalidRequest.code] + seen.endings[ContextOverflow.code] == 2
        admitted = sum(seen.endings.values()) - seen.endings[Overloaded.code] - seen.endings[InvalidRequest.code]
        if seen.endings[ContextOverflow.code]:  # judged by the field alone, before the gate, or by the prompt behind it
            assert stats.queue_s.count in {admitted, admitted - 1}
        else:
            assert stats.queue_s.count == admitted
        assert stats.answer_length.sum <= stats.completion_tokens
        check_counts(stats, seen)


async def test_tokens_are_counted_as_they_come(rig: Rig, worker: EngineWorker) -> None:
    before = worker.stats.completion_tokens
    stream = worker.stream(**ENDLESS)
    tokens = 0
    async for event in stream:
        if isinstance(event, Delta):
            tokens += len(event.token_ids)
        if tokens >= 5:
            break
    assert worker.stats.completion_tokens - before >= 5
    assert 0 < worker.status.kv_used <= 1
    await stream.aclose()
    await until_idle(rig, worker)
    assert worker.status.kv_used == 0


async def test_times_add_up(worker: EngineWorker) -> None:
    stats = worker.stats
    before = {name: sum_of(getattr(stats, name)) for name in ("queue_s", "prefill_s", "first_token_s", "request_s")}
    result = await worker.generate(**SHORT, max_tokens=6)
    took = {name: sum_of(getattr(stats, name)) - then for name, then in before.items()}
    assert took["queue_s"] + took["prefill_s"] == pytest.approx(took["first_token_s"], abs=1e-4)
    assert took["first_token_s"] == pytest.approx(result.metrics.first_token_s, abs=1e-6)
    assert took["request_s"] == pytest.approx(result.metrics.total_s, abs=1e-6)


def sum_of(histogram: Histogram) -> float:
    return histogram.sum


async def test_the_status_tells_what_the_engine_tells(worker: EngineWorker) -> None:
    status = worker.status
    assert status.memory
    assert all(memory.total_bytes >= 0 for memory in status.memory)
    assert status.counts.preemptions >= 0
    assert worker.stats.restarts == 0


async def test_what_is_echoed_alone_samples_nothing(worker: EngineWorker) -> None:
    before = replace(worker.stats)
    with suppress(InvalidRequest):  # not offered everywhere
        events = [e async for e in worker.stream(prompt=PROMPT, echo=True, max_tokens=0)]
        assert isinstance(events[0], Started)
        assert isinstance(events[-1], Finished)
    assert worker.stats.completion_tokens == before.completion_tokens


async def test_a_deadline_in_the_queue_counts_no_place(rig: Rig) -> None:
    async with rig.open(max_running=1, max_waiting=2) as worker:
        holding = worker.stream(**ENDLESS)
        await read_some(holding, 2)
        with pytest.raises(DeadlineExceeded):
            await worker.generate(**SHORT, max_tokens=2, timeout_s=0.05)
        assert worker.stats.queue_s.count == 1
        assert worker.stats.request_s.count == 0
        await holding.aclose()
        assert worker.stats.request_s.count == 1

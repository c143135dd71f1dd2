"""Preemptions and the time of masks are counted over all engines that a worker had, and over all workers that count in
one place."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from drivetrain.core.engine import Engine, Health, ModelSpec, WeightsFormat
from drivetrain.core.results import EngineCounts
from drivetrain.core.stats import Stats
from drivetrain.engines.fake import FakeEngine
from drivetrain.worker import worker as worker_module
from drivetrain.worker.settings import Settings
from drivetrain.worker.worker import EngineWorker

SPEC = ModelSpec(name="fake", path=Path(), format=WeightsFormat.NONE)


class Preempting(FakeEngine):
    """Tells of them as the real ones do: its own, and none once it is closed."""

    preempted = 0
    masks: float | None = None

    def health(self) -> Health:
        return replace(super().health(), counts=EngineCounts(self.preempted, self.masks))

    async def close(self) -> None:
        await super().close()
        self.preempted, self.masks = 0, None


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "WATCH_INTERVAL_S", 0.02)
    monkeypatch.setattr("drivetrain.worker.health.revival.FIRST_S", 0.01)


async def test_they_go_on_where_an_engine_was_replaced() -> None:
    made: list[Preempting] = []

    def make() -> Engine:
        made.append(Preempting())
        return made[-1]

    async with EngineWorker(make(), SPEC, Settings(), remake=make) as worker:
        made[0].preempted = 3
        assert (worker.status.counts.preemptions, worker.status.counts.mask_s) == (3, None)
        made[0].preempted, made[0].masks = 4, 0.5
        made[0].die()
        async with asyncio.timeout(10):
            while worker.stats.restarts == 0:
                assert worker.status.counts.preemptions >= 3
                await asyncio.sleep(0.005)
        assert worker.status.counts.mask_s == 0.5
        made[1].preempted, made[1].masks = 5, 0.25
        assert [(worker.status.counts.preemptions, worker.status.counts.mask_s) for _ in range(2)] == [
            (9, 0.75),
            (9, 0.75),
        ]


async def test_they_go_on_where_the_model_is_loaded_again() -> None:
    stats = Stats()
    for number in (2, 1):
        engine = Preempting()
        async with EngineWorker(engine, SPEC, stats=stats):
            engine.preempted, engine.masks = number, number / 4
    assert (stats.engine.preemptions, stats.engine.mask_s) == (3, 0.75)


async def test_the_stats_have_those_of_a_running_engine() -> None:
    """From its load on, and as of each request's end; an engine that cannot tell for a moment is not counted twice."""
    engine = Preempting()
    engine.masks = 0.0
    async with EngineWorker(engine, SPEC) as worker:
        assert (worker.stats.engine.preemptions, worker.stats.engine.mask_s) == (0, 0.0)
        for preempted, masks, so_far in ((2, 0.5, (2, 0.5)), (0, None, (2, 0.5)), (3, 0.75, (3, 0.75))):
            engine.preempted, engine.masks = preempted, masks
            await worker.generate(prompt="x", max_tokens=1)
            assert (worker.stats.engine.preemptions, worker.stats.engine.mask_s) == so_far

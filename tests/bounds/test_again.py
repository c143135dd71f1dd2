"""A request that was given nothing yet goes on with the engine that takes the place of one that failed."""

from __future__ import annotations

import asyncio

import pytest

from bounds.test_ready import ENDLESS, STEADY, Gated, outcome, quick, read_until_delta, until, worker_of
from drivetrain.core.engine import EngineRequest, StepSink
from drivetrain.core.errors import DeadlineExceeded, EngineFailed
from drivetrain.core.events import Finished, Started
from drivetrain.core.status import State
from drivetrain.engines.channel import StepChannel
from drivetrain.engines.fake import FakeEngine, Script

__all__ = ["quick"]

SILENT = Script(repeat=True, hang_at_step=0)
"""Takes a request and gives nothing."""


async def test_it_is_answered_as_if_nothing_had_happened() -> None:
    broken = FakeEngine(SILENT)
    async with worker_of(broken, FakeEngine(STEADY)) as worker:
        stream = worker.stream(prompt="x", max_tokens=5)
        assert isinstance(await anext(stream), Started)
        reading = asyncio.ensure_future(stream.batch())
        await until(lambda: broken.health().active == 1)
        broken.die()
        rest = [*await reading, *[event async for event in stream]]
        assert not any(isinstance(event, Started) for event in rest)
        assert isinstance(rest[-1], Finished)
        assert rest[-1].usage.completion_tokens == 5
        assert worker.stats.endings == {"finished": 1}
        assert worker.status.running == 0


async def test_one_that_has_begun_ends_typed_and_the_other_goes_on() -> None:
    broken = FakeEngine(STEADY)
    async with worker_of(broken, FakeEngine(STEADY), max_running=2) as worker:
        begun = worker.stream(**ENDLESS)
        await read_until_delta(begun)
        broken.script = SILENT
        waiting = asyncio.ensure_future(worker.generate(prompt="x", max_tokens=3))
        await until(lambda: broken.health().active == 2)
        broken.die()
        with pytest.raises(EngineFailed) as caught:
            async for _ in begun:
                pass
        assert caught.value.partial is not None
        assert caught.value.partial.usage.completion_tokens
        assert (await waiting).usage.completion_tokens == 3
        assert worker.stats.endings == {"engine_error": 1, "finished": 1}


async def test_one_that_kills_its_engines_costs_two_of_them() -> None:
    engines = [FakeEngine(SILENT) for _ in range(3)]

    async def kill() -> None:
        for engine in engines:
            await until(lambda engine=engine: engine.health().active == 1)  # type: ignore[misc] # bound now
            engine.die()

    async with worker_of(*engines, FakeEngine(STEADY)) as worker:
        killing = asyncio.create_task(kill())
        assert isinstance(await outcome(worker.generate(prompt="x", max_tokens=3)), EngineFailed)
        await until(lambda: worker.stats.restarts == 2 and worker.state is State.READY)
        killing.cancel()
        assert worker.stats.endings == {"engine_error": 1}


async def test_its_deadline_is_that_of_the_whole() -> None:
    broken = FakeEngine(SILENT)
    async with worker_of(broken, FakeEngine(SILENT)) as worker:
        answer = asyncio.ensure_future(outcome(worker.generate(prompt="x", max_tokens=3, timeout_s=1.0)))
        await until(lambda: broken.health().active == 1)
        broken.die()
        assert isinstance(await answer, DeadlineExceeded)
        await until(lambda: worker.status.running == 0)


async def test_who_leaves_meanwhile_holds_nothing() -> None:
    broken = FakeEngine(SILENT)
    async with worker_of(broken, FakeEngine(STEADY)) as worker:
        stream = worker.stream(prompt="x", max_tokens=5)
        assert isinstance(await anext(stream), Started)
        await until(lambda: broken.health().active == 1)
        broken.die()
        await stream.aclose()
        await until(lambda: worker.state is State.READY)
        assert worker.status.running == worker.status.waiting == 0
        assert worker.stats.endings == {"cancelled": 1}
        assert (await worker.generate(prompt="x", max_tokens=3)).usage.completion_tokens == 3


class DiesInGenerate(FakeEngine):
    def generate(self, request: EngineRequest, sink: StepSink) -> StepChannel:
        self.die()
        return super().generate(request, sink)


async def test_who_leaves_one_that_was_closed_in_the_call_that_began_it() -> None:
    gate = asyncio.Event()
    async with worker_of(DiesInGenerate(STEADY), Gated(gate)) as worker:
        stream = worker.stream(prompt="x", max_tokens=5)
        assert isinstance(await anext(stream), Started)
        await until(lambda: worker.state is State.RESTARTING and worker.status.waiting == 1)
        async with asyncio.timeout(30):
            await stream.aclose()
        gate.set()
        await until(lambda: worker.state is State.READY)
        assert worker.status.running == worker.status.waiting == 0
        assert (await worker.generate(prompt="x", max_tokens=3)).usage.completion_tokens == 3


async def test_where_no_engine_takes_its_place_the_error_stands() -> None:
    broken = FakeEngine(SILENT)
    async with worker_of(broken, restart=False) as worker:
        answer = asyncio.ensure_future(outcome(worker.generate(prompt="x", max_tokens=3)))
        await until(lambda: broken.health().active == 1)
        broken.die()
        assert isinstance(await answer, EngineFailed)

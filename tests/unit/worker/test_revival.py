"""An engine that dies, stalls or has no memory left: typed endings, not ready, loaded again, ready."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drivetrain.core.engine import Engine, EngineInfo, EngineRequest, Health, ModelSpec, Progress, WeightsFormat
from drivetrain.core.errors import Cancelled, DeadlineExceeded, EngineFailed, InvalidRequest, NotReady, OutOfMemory
from drivetrain.core.events import Delta
from drivetrain.core.status import State
from drivetrain.engines.fake import FakeEngine, Script
from drivetrain.worker import worker as worker_module
from drivetrain.worker.health import closing, watchdog
from drivetrain.worker.health.revival import Backoff
from drivetrain.worker.health.watchdog import Watchdog
from drivetrain.worker.settings import Settings
from drivetrain.worker.worker import EngineWorker

SPEC = ModelSpec(name="fake", path=Path(), format=WeightsFormat.NONE)
ENDLESS: dict[str, Any] = {"prompt": "x", "max_tokens": 4000, "ignore_eos": True}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "WATCH_INTERVAL_S", 0.02)
    monkeypatch.setattr("drivetrain.worker.health.revival.FIRST_S", 0.1)


class Garage:
    """Makes engines, and remembers them."""

    def __init__(self, *scripts: Script) -> None:
        self._scripts = list(scripts)
        self.made: list[FakeEngine] = []
        self.open = asyncio.Event()
        """While it is cleared, engines do not load."""
        self.open.set()

    def __call__(self) -> Engine:
        script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
        self.made.append(Gated(script, self.open))
        return self.made[-1]

    def worker(self, **settings: Any) -> EngineWorker:
        return EngineWorker(self(), SPEC, Settings(**settings), remake=self)


class Gated(FakeEngine):
    def __init__(self, script: Script, gate: asyncio.Event) -> None:
        super().__init__(script)
        self._gate = gate

    async def load(self, spec: ModelSpec, progress: Progress) -> EngineInfo:
        await self._gate.wait()
        return await super().load(spec, progress)


STEADY = Script(repeat=True, step_delay_s=0.005)


async def until(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.005)


async def read_until_delta(stream: object) -> None:
    async for event in stream:  # type: ignore[attr-defined] # an EventStream
        if isinstance(event, Delta):
            return


async def test_a_dead_engine_is_replaced() -> None:
    garage = Garage(STEADY)
    async with garage.worker(max_running=2) as worker:
        running = [worker.stream(**ENDLESS) for _ in range(2)]
        for stream in running:
            await read_until_delta(stream)
        waiting = asyncio.ensure_future(worker.generate(prompt="x", max_tokens=3))
        await until(lambda: worker.status.waiting == 1)
        garage.open.clear()
        garage.made[0].die("it was killed")
        for stream in running:
            with pytest.raises(EngineFailed, match="it was killed"):
                await read_to_the_end(stream)
        await until(lambda: worker.state is State.RESTARTING)
        newcomer = asyncio.ensure_future(worker.generate(prompt="x", max_tokens=2))
        await until(lambda: worker.status.waiting == 2)
        assert worker.status.running == 0
        garage.open.set()
        await until(lambda: worker.state is State.READY)
        assert (await waiting).usage.completion_tokens == 3
        assert (await newcomer).usage.completion_tokens == 2
        assert (await worker.generate(prompt="x", max_tokens=3)).usage.completion_tokens == 3
        assert worker.stats.restarts == 1
        assert worker.status.running == worker.status.waiting == 0
        assert len(garage.made) == 2
    assert not garage.made[1].health().alive


async def read_to_the_end(stream: object) -> None:
    async for _ in stream:  # type: ignore[attr-defined] # an EventStream
        pass


async def test_an_engine_that_does_not_move_is_replaced() -> None:
    garage = Garage(Script(repeat=True, hang_at_step=2), STEADY)
    async with garage.worker(stall_s=0.3) as worker:
        stream = worker.stream(**ENDLESS)
        with pytest.raises(EngineFailed, match="has made no progress"):
            await read_to_the_end(stream)
        await until(lambda: worker.state is State.READY and worker.stats.restarts == 1)
        assert (await worker.generate(prompt="x", max_tokens=3)).usage.completion_tokens == 3


async def test_one_that_is_idle_for_long_is_well() -> None:
    async with Garage(STEADY).worker(stall_s=0.1) as worker:
        await asyncio.sleep(0.4)
        result = await worker.generate(prompt="x", max_tokens=3)
        assert result.usage.completion_tokens == 3
        assert worker.stats.restarts == 0


async def test_out_of_memory_again_and_again() -> None:
    garage = Garage(Script(repeat=True, fault=OutOfMemory("no more"), fault_at_step=0), STEADY)
    async with garage.worker() as worker:
        for _ in range(watchdog.TIMES_OUT_OF_MEMORY):
            with pytest.raises(OutOfMemory):
                await worker.generate(prompt="x")
        await until(lambda: worker.stats.restarts == 1)
        assert (await worker.generate(prompt="x", max_tokens=3)).usage.completion_tokens == 3


async def test_it_tries_until_it_loads() -> None:
    broken = Script(load_error=RuntimeError("not yet"))
    garage = Garage(STEADY, broken, broken, STEADY)
    async with garage.worker() as worker:
        garage.made[0].die()
        await until(lambda: worker.stats.restarts == 1)
        assert len(garage.made) == 4
        assert worker.state is State.READY
    assert not any(engine.health().alive for engine in garage.made)


async def test_a_stop_in_the_middle_of_it_leaves_nothing() -> None:
    before = asyncio.all_tasks()
    garage = Garage(STEADY, Script(load_error=RuntimeError("never")))
    worker = garage.worker()
    await worker.start()
    garage.made[0].die()
    await until(lambda: len(garage.made) > 1)
    await worker.stop()
    assert worker.state is State.STOPPED
    assert not any(engine.health().alive for engine in garage.made)
    assert asyncio.all_tasks() <= before


async def test_one_that_cannot_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "CLOSE_S", 0.1)
    hanging = asyncio.Event()

    class Stuck(FakeEngine):
        async def close(self) -> None:
            await hanging.wait()
            await super().close()

    stuck = Stuck(STEADY)
    worker = EngineWorker(stuck, SPEC, Settings(), remake=Garage(STEADY))
    await worker.start()
    stuck.die()
    await until(lambda: worker.state is State.FAILED)
    with pytest.raises(NotReady, match="restart this process"):
        await worker.generate(prompt="x")
    hanging.set()
    await worker.stop()


@pytest.mark.parametrize("settings", [{"restart": False}, {}])
async def test_who_is_not_to_be_replaced_is_not(settings: dict[str, Any]) -> None:
    engine = FakeEngine(STEADY)
    remake = None if not settings else Garage(STEADY)
    async with EngineWorker(engine, SPEC, Settings(**settings), remake=remake) as worker:
        engine.die("it was killed")
        await until(lambda: worker.state is State.FAILED)
        assert not worker.status.engine_alive
        with pytest.raises(NotReady, match=r"it was killed; it is not restarted automatically: restart the process"):
            await worker.generate(prompt="x")


async def test_who_is_not_to_be_replaced_is_not_ready_when_it_stalls() -> None:
    engine = FakeEngine(Script(repeat=True, hang_at_step=2))
    async with EngineWorker(engine, SPEC, Settings(restart=False, stall_s=0.2)) as worker:
        with pytest.raises(EngineFailed, match="has made no progress"):
            await read_to_the_end(worker.stream(**ENDLESS))
        assert worker.state is State.FAILED


async def test_an_engine_that_cannot_even_be_made_is_tried_again() -> None:
    garage = Garage(STEADY)
    failures = [RuntimeError("can't start new thread"), RuntimeError("can't start new thread")]

    def make() -> Engine:
        if failures:
            raise failures.pop()
        return garage()

    async with EngineWorker(garage(), SPEC, Settings(), remake=make) as worker:
        garage.made[0].die()
        await until(lambda: worker.stats.restarts == 1)
        assert not failures
        assert worker.state is State.READY


async def test_one_request_too_large_for_the_memory_does_not_end_those_of_others() -> None:
    def reply(request: EngineRequest) -> tuple[int, ...]:
        if request.max_tokens == 1:
            raise OutOfMemory("no more")
        return (65,)

    garage = Garage(Script(repeat=True, step_delay_s=0.005, reply=reply))
    async with garage.worker() as worker:
        stream = worker.stream(**ENDLESS)
        reading = asyncio.ensure_future(read_to_the_end(stream))
        for _ in range(2 * watchdog.TIMES_OUT_OF_MEMORY):
            with pytest.raises(OutOfMemory):
                await worker.generate(prompt="x", max_tokens=1)
            tokens = worker.stats.completion_tokens
            await until(lambda before=tokens: worker.stats.completion_tokens > before + 1)  # type: ignore[misc]
        assert worker.state is State.READY
        assert worker.stats.restarts == 0
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


def health(*, alive: bool = True, last: float = 0.0, mends_itself: bool = False) -> Health:
    return Health(alive, 1, last, mends_itself=mends_itself)


def test_what_the_watchdog_says() -> None:
    now = 100.0
    dog = Watchdog(10.0, lambda: now)
    assert dog.complaint(health(last=0.0), wanted=True) == ""  # it was idle until a moment ago
    now = 111.0
    assert "made no progress for 11 seconds" in dog.complaint(health(last=0.0), wanted=True)
    assert dog.complaint(health(last=105.0), wanted=True) == ""
    now = 121.5
    assert "made no progress" in dog.complaint(health(last=105.0), wanted=True)
    assert dog.complaint(health(last=105.0), wanted=True, tokens=1) == ""  # whoever told of a token, it came
    assert dog.complaint(health(alive=False), wanted=True) == "the engine stopped"
    assert dog.complaint(health(alive=False, mends_itself=True), wanted=True) == ""


def test_pauses_between_requests_hide_no_engine_that_hangs() -> None:
    now = 100.0
    dog = Watchdog(10.0, lambda: now)
    for _ in range(5):  # each has its deadline after 2 seconds, and the next one comes a minute later
        assert dog.complaint(health(), wanted=True) == ""
        now += 2
        assert dog.complaint(health(), wanted=False) == ""
        now += 60
    assert dog.complaint(health(), wanted=True) == ""
    now += 2
    assert "made no progress for 12 seconds" in dog.complaint(health(), wanted=False)


def test_what_does_not_come_to_the_engine_is_wanted_all_the_same() -> None:
    now = 100.0
    dog = Watchdog(10.0, lambda: now)
    assert dog.complaint(health(), wanted=True) == ""
    now = 111.0
    assert "made no progress" in dog.complaint(health(), wanted=True)


async def test_requests_that_meet_their_deadlines_give_a_hung_engine_away() -> None:
    garage = Garage(Script(repeat=True, hang_at_step=0), STEADY)
    async with garage.worker(stall_s=0.5) as worker:
        async with asyncio.timeout(20):
            while not worker.stats.restarts:
                if worker.state is State.READY:
                    with pytest.raises((DeadlineExceeded, EngineFailed)):
                        await worker.generate(prompt="x", max_tokens=5, timeout_s=0.1)
                await asyncio.sleep(0.05)
        await until(lambda: worker.state is State.READY)
        assert (await worker.generate(prompt="x", max_tokens=5)).usage.completion_tokens == 5


def test_the_watchdog_counts_what_ran_out_of_memory_in_a_row() -> None:
    dog = Watchdog(10.0)
    for error in (OutOfMemory("x"), OutOfMemory("x"), None, OutOfMemory("x"), InvalidRequest("x"), OutOfMemory("x")):
        dog.ended(error)
        assert dog.complaint(health(), wanted=False) == ""
    dog.ended(OutOfMemory("x"))
    assert "3 requests in a row" in dog.complaint(health(), wanted=False)
    for left in (Cancelled("x"), DeadlineExceeded("x")):  # the engine has answered nobody since
        dog.ended(left)
        assert "3 requests in a row" in dog.complaint(health(), wanted=False)
    dog.ended(None)
    assert dog.complaint(health(), wanted=False) == ""


def test_waits_before_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drivetrain.worker.health.revival.FIRST_S", 1.0)
    backoff = Backoff()
    assert [backoff.wait_s(0.0) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert backoff.wait_s(10.0) == 60
    assert [backoff.wait_s(61.0), backoff.wait_s(0.0)] == [1, 2]

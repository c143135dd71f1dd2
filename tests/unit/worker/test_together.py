"""Requests that come at once start at once, if the engine is idle."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

import pytest

from drivetrain.core.engine import EngineRequest, ModelSpec, WeightsFormat
from drivetrain.core.errors import Cancelled, DeadlineExceeded
from drivetrain.engines.fake import FakeEngine, Script
from drivetrain.worker import burst
from drivetrain.worker.settings import Settings
from drivetrain.worker.worker import Worker

SPEC = ModelSpec(name="fake", path=Path(), format=WeightsFormat.NONE)


class Watched(FakeEngine):
    """Notes how many requests were still being prepared as each one was handed over."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.behind: list[int] = []
        self.come: list[int] = []
        self.preparer: Any = None

    def generate(self, request: EngineRequest) -> Any:
        self.behind.append(self.preparer.burst._preparing)
        self.come.append(self.preparer.burst._num_come)
        return super().generate(request)


async def test_nobody_is_handed_over_while_others_are_prepared() -> None:
    engine = Watched(Script(text="ab"))
    async with Worker(engine, SPEC, Settings()) as worker:
        engine.preparer = worker._preparer
        await asyncio.gather(*(worker.generate(prompt=f"x{i}") for i in range(20)))
    assert engine.behind == [0] * 20


async def test_the_first_of_a_burst_waits_for_those_that_come_right_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As requests do whose bytes are read one after another. The times are long, for a machine that is busy."""
    monkeypatch.setattr(burst, "QUIET_S", 0.3)
    monkeypatch.setattr(burst, "GATHER_S", 10.0)
    engine = Watched(Script(text="ab"))

    async def ask(worker: Worker, number: int) -> None:
        for _ in range(3 * number):
            await asyncio.sleep(0)
        await worker.generate(prompt=f"x{number}")

    async with Worker(engine, SPEC, Settings()) as worker:
        engine.preparer = worker._preparer
        await asyncio.gather(*(ask(worker, number) for number in range(8)))
        assert engine.come == [8] * 8
        await worker.generate(prompt="later")
    assert engine.come == [8] * 8 + [9]


async def test_one_that_is_cancelled_while_it_waits_holds_up_nobody() -> None:
    engine = Watched(Script(text="ab"))
    async with Worker(engine, SPEC, Settings()) as worker:
        engine.preparer = worker._preparer
        given_up = asyncio.create_task(worker.generate(prompt="given up"))
        kept = asyncio.create_task(worker.generate(prompt="kept"))
        await asyncio.sleep(0)
        given_up.cancel()
        assert (await kept).choices[0].text
        assert (await worker.generate(prompt="later")).choices[0].text


async def test_a_slow_one_is_not_waited_for(monkeypatch: Any) -> None:
    engine = Watched(Script(text="ab"))
    async with Worker(engine, SPEC, Settings()) as worker:
        engine.preparer = worker._preparer
        assert worker._preparer is not None
        render = worker._preparer._prepare

        def slow(request: Any, *rest: Any) -> Any:
            if request.prompt == "slow":
                time.sleep(0.5)
            return render(request, *rest)

        monkeypatch.setattr(worker._preparer, "_prepare", slow)
        behind = asyncio.create_task(worker.generate(prompt="slow"))
        await asyncio.sleep(0.05)
        begun = time.monotonic()
        await worker.generate(prompt="quick")
        assert time.monotonic() - begun < 0.3 + burst.GATHER_S
        assert not behind.done()
        await behind
    assert engine.behind == [1, 0]


async def test_time_that_preparing_took_is_waited_no_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(burst, "QUIET_S", 0.5)
    engine = Watched(Script(text="ab"))
    async with Worker(engine, SPEC, Settings()) as worker:
        engine.preparer = worker._preparer
        assert worker._preparer is not None
        render = worker._preparer._prepare

        def slow(*given: Any) -> Any:
            time.sleep(0.5)
            return render(*given)

        monkeypatch.setattr(worker._preparer, "_prepare", slow)
        begun = time.monotonic()
        await worker.generate(prompt="slow")
        assert 0.5 <= time.monotonic() - begun < 0.9


async def test_who_waits_for_others_can_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its deadline, by its reader and by cancelling that; also in a task that was cancelled once and went on."""
    monkeypatch.setattr(burst, "QUIET_S", 1.0)
    engine = Watched(Script(text="ab"))
    async with Worker(engine, SPEC, Settings()) as worker:
        engine.preparer = worker._preparer
        kept = asyncio.create_task(worker.generate(prompt="kept"))
        cancelled = asyncio.create_task(worker.generate(prompt="cancelled"))
        stream = worker.stream(prompt="closed")
        closed = asyncio.ensure_future(anext(stream))

        async def stubborn() -> None:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(10)
            await worker.generate(prompt="late", timeout_s=0.3)

        late = asyncio.create_task(stubborn())
        await asyncio.sleep(0.05)
        late.cancel()
        cancelled.cancel()
        await stream.aclose()
        with pytest.raises(Cancelled):
            await closed
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        with pytest.raises(DeadlineExceeded):
            await late
        assert engine.come == []
        assert (await kept).choices[0].text
        assert worker.status.running == 0
        assert len(engine.come) == 1

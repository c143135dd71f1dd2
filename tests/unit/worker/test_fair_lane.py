"""Whose work is next, where several want something compiled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from drivetrain.core.errors import Cancelled, NotReady
from drivetrain.core.tokenizer import check_wanted
from drivetrain.worker.fair_lane import HEAVY_S, FairLane


class Hand:
    """A clock that stands still unless it is moved."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Works:
    """Pieces of work that end when they are told to."""

    def __init__(self, lane: FairLane) -> None:
        self._lane = lane
        self.begun: list[str] = []
        self._ends: dict[str, threading.Event] = {}
        self._lock = threading.Lock()

    def add(self, name: str, caller: str) -> asyncio.Task[str]:
        self._ends[name] = threading.Event()
        return asyncio.create_task(self._lane.run(lambda: self._work(name), caller))

    def end(self, name: str) -> None:
        self._ends[name].set()

    def _work(self, name: str) -> str:
        with self._lock:
            self.begun.append(name)
        assert self._ends[name].wait(60)
        return name


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.001)


@pytest.fixture
def clock() -> Hand:
    return Hand()


@pytest.fixture
async def lane(clock: Hand) -> AsyncIterator[FairLane]:
    made = FairLane("test", places=3, for_heavy=1, clock=clock)
    yield made
    made.close()


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_one_caller_has_one_place(lane: FairLane) -> None:
    works = Works(lane)
    many = [works.add(f"a{i}", "a") for i in range(5)]
    await until(lambda: works.begun == ["a0"])
    await settled()
    other = works.add("b0", "b")
    await until(lambda: works.begun == ["a0", "b0"])
    works.end("b0")
    assert await other == "b0"
    for i in range(5):
        works.end(f"a{i}")
    assert await asyncio.gather(*many) == [f"a{i}" for i in range(5)]
    assert works.begun == ["a0", "b0", "a1", "a2", "a3", "a4"]


async def test_callers_take_turns(lane: FairLane) -> None:
    works = Works(lane)
    first = [works.add(name, name) for name in "xyz"]
    await until(lambda: len(works.begun) == 3)
    waiting = [works.add(name, name[0]) for name in ("a0", "a1", "a2", "b0", "b1")]
    await settled()
    for name in ("x", "a0", "b0", "a1", "b1"):
        works.end(name)
    await asyncio.gather(first[0], *waiting[:2], *waiting[3:])
    await until(lambda: "a2" in works.begun)
    assert [name for name in works.begun[3:] if name[0] == "a"] == ["a0", "a1", "a2"]
    assert works.begun.index("b0") < works.begun.index("a2")
    for name in ("y", "z", "a2"):
        works.end(name)
    await asyncio.gather(*first, *waiting)


async def test_those_whose_work_takes_long_share_a_few_places(lane: FairLane, clock: Hand) -> None:
    works = Works(lane)
    for name in "ab":
        task = works.add(name, name)
        await until(lambda name=name: name in works.begun)  # type: ignore[misc]
        clock.now += HEAVY_S
        works.end(name)
        await task
    await settled()
    again = [works.add("a1", "a"), works.add("b1", "b")]
    await until(lambda: works.begun[2:] == ["a1"])
    await settled()
    others = [works.add("c", "c"), works.add("d", "d")]
    await until(lambda: set(works.begun[3:]) == {"c", "d"})
    works.end("a1")
    await until(lambda: works.begun[5:] == ["b1"])
    for name in ("b1", "c", "d"):
        works.end(name)
    await asyncio.gather(*again, *others)
    last = [works.add("a2", "a"), works.add("b2", "b")]
    await until(lambda: set(works.begun[6:]) == {"a2", "b2"})  # what was quick is forgiven
    works.end("a2")
    works.end("b2")
    await asyncio.gather(*last)


async def test_who_leaves_is_passed_over_and_keeps_the_place_until_the_thread_is_free(lane: FairLane) -> None:
    works = Works(lane)
    running = [works.add(name, name) for name in "xyz"]
    await until(lambda: len(works.begun) == 3)
    gone, stays = works.add("a", "a"), works.add("b", "b")
    await settled()
    gone.cancel()
    running[0].cancel()
    await asyncio.gather(gone, running[0], return_exceptions=True)
    await settled()
    assert works.begun[3:] == []
    works.end("x")
    await until(lambda: works.begun[3:] == ["b"])
    for name in "yzb":
        works.end(name)
    await asyncio.gather(*running[1:], stays)


async def test_work_notices_that_nobody_waits(lane: FairLane) -> None:
    begun, noticed = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        try:
            while True:
                check_wanted()
        except Cancelled:
            noticed.set()
            raise

    task = asyncio.create_task(lane.run(work, "a"))
    await until(begun.is_set)
    task.cancel()
    await until(noticed.is_set)


async def test_a_closed_lane_refuses_who_waits() -> None:
    lane = FairLane("test", places=1)
    works = Works(lane)
    running, waiting = works.add("a", "a"), works.add("b", "b")
    await until(lambda: works.begun == ["a"])
    await settled()
    works.end("a")
    lane.close()
    with pytest.raises(NotReady):
        await waiting
    with pytest.raises(NotReady):
        await lane.run(lambda: None, "c")
    assert await running == "a"

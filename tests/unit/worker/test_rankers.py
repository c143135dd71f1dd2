"""Jobs on spare slots: as wide as nobody minds, and nothing left behind, however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from drivetrain.core.errors import EngineFailed
from drivetrain.worker.admission import Admission
from drivetrain.worker.rankers import Spreading, sigmoid


class Work:
    """`gate` holds the jobs; `running` and `most` count those that are on."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.running = self.most = self.begun = 0

    def job(self, number: int) -> Callable[[], Coroutine[Any, Any, int]]:
        async def run() -> int:
            self.begun += 1
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                await asyncio.sleep(0)
                await self.gate.wait()
            finally:
                self.running -= 1
            return number

        return run


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0)


async def test_it_takes_what_is_spare_and_gives_way() -> None:
    admission, work = Admission(max_running=4, max_waiting=4), Work()
    work.gate.set()
    mine = await admission.enter().wait()
    assert await Spreading([work.job(i) for i in range(20)], admission.spare).done() == list(range(20))
    assert 1 < work.most <= 4
    assert admission.running == 1

    others = [await admission.enter().wait() for _ in range(3)]
    work.most = 0
    assert await Spreading([work.job(i) for i in range(5)], admission.spare).done() == list(range(5))
    assert work.most == 1
    waiting = asyncio.create_task(admission.enter().wait())
    await until(lambda: admission.waiting == 1)
    others.pop().release()
    assert admission.spare() is None
    (await waiting).release()
    for slot in (mine, *others):
        slot.release()
    assert admission.running == 0


async def test_the_first_one_is_alone() -> None:
    admission, work = Admission(max_running=4, max_waiting=4), Work()
    mine = await admission.enter().wait()
    task = asyncio.create_task(Spreading([work.job(i) for i in range(8)], admission.spare).done())
    await until(lambda: work.running == 1)
    for _ in range(5):
        await asyncio.sleep(0)
    assert work.begun == 1
    work.gate.set()
    assert await task == list(range(8))
    mine.release()
    assert admission.running == 0


@pytest.mark.parametrize("at", [0, 3, 7])
async def test_the_first_error_ends_all(at: int) -> None:
    admission, work = Admission(max_running=4, max_waiting=4), Work()
    work.gate.set()

    async def fail() -> int:
        raise EngineFailed("broken")

    jobs = [work.job(i) for i in range(8)]
    jobs[at] = fail
    mine = await admission.enter().wait()
    with pytest.raises(EngineFailed, match="broken"):
        await Spreading(jobs, admission.spare).done()
    assert (work.running, admission.running) == (0, 1)
    mine.release()


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
async def test_cancelling_gives_every_slot_back(steps: int) -> None:
    """Also those of jobs that have not begun."""
    admission, work = Admission(max_running=4, max_waiting=4), Work()
    mine = await admission.enter().wait()

    async def quick() -> int:
        return 0

    task = asyncio.create_task(Spreading([quick, *(work.job(i) for i in range(8))], admission.spare).done())
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await until(lambda: admission.running == 1)
    assert work.running == 0
    mine.release()


@pytest.mark.parametrize(("logit", "score"), [(0, 0.5), (1e9, 1), (-1e9, 0), (float("inf"), 1), (float("-inf"), 0)])
def test_no_logit_is_too_large(logit: float, score: float) -> None:
    assert sigmoid(logit) == pytest.approx(score)

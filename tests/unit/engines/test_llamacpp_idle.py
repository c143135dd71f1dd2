"""Many who wait for their slots share the questions, and each gets an answer to one that was put after it had come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from drivetrain.core.errors import EngineFailed
from drivetrain.engines.llamacpp.child.connection import ChildConnection
from drivetrain.engines.llamacpp.idle import SlotWatch


class Slots:
    """llama.cpp's: it answers when it is told to, with what is so by then."""

    def __init__(self, *busy: int) -> None:
        self.busy = set(busy)
        self.asked = 0
        self.say = asyncio.Event()
        self.alive = True
        self.error: Exception | None = None
        self.ended = False

    def end(self) -> None:
        self.ended, self.alive, self.error = True, False, EOFError()
        self.say.set()

    async def ask(self, method: str, path: str) -> Any:
        assert (method, path) == ("GET", "/slots")
        self.asked += 1
        seen = [{"id": i, "is_processing": i in self.busy} for i in range(200)]
        await self.say.wait()
        if self.error is not None:
            raise self.error
        return seen

    def watch(self) -> SlotWatch:
        return SlotWatch(cast("ChildConnection", self), lambda: self.alive, self.end)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():
            await asyncio.sleep(0)


async def test_all_who_leave_at_once_are_told_by_one_answer() -> None:
    slots = Slots()
    watch = slots.watch()
    waiting = [asyncio.create_task(watch.until_idle(i)) for i in range(128)]
    await until(lambda: slots.asked == 1)
    slots.say.set()
    await asyncio.gather(*waiting)
    assert slots.asked == 1
    assert watch._asking is None


async def test_who_comes_after_a_question_waits_for_the_next() -> None:
    slots = Slots(7)
    watch = slots.watch()
    first, busy = asyncio.create_task(watch.until_idle(1)), asyncio.create_task(watch.until_idle(7))
    await until(lambda: slots.asked == 1)
    late = asyncio.create_task(watch.until_idle(2))  # it began to compute after the question was put, for all we know
    await asyncio.sleep(0)
    slots.busy.add(2)
    slots.say.set()
    await first
    await until(lambda: slots.asked > 3)
    assert not late.done()
    assert not busy.done()
    slots.busy.clear()
    await asyncio.gather(late, busy)


async def test_one_that_is_cancelled_waits_all_the_same_and_says_so() -> None:
    slots = Slots(3)
    slots.say.set()
    task = asyncio.create_task(slots.watch().until_idle(3))
    await until(lambda: slots.asked > 1)
    task.cancel()
    await until(lambda: slots.asked > 3)
    assert not task.done()
    slots.busy.clear()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("error", [ConnectionRefusedError(), EOFError()])
async def test_where_llama_cpp_has_ended_nobody_waits(error: Exception) -> None:
    slots = Slots(1)
    slots.error = error
    slots.say.set()
    task = asyncio.create_task(slots.watch().until_idle(1))
    await until(lambda: slots.asked > 2)
    assert not task.done()
    slots.alive = False
    await task


async def test_an_answer_that_cannot_be_read_is_told_to_all_and_the_next_ask_anew() -> None:
    slots = Slots()
    slots.error = ValueError("no JSON")
    slots.say.set()
    watch = slots.watch()
    told = await asyncio.gather(*(watch.until_idle(i) for i in range(3)), return_exceptions=True)
    assert [type(error) for error in told] == [EngineFailed] * 3
    assert [str(cast("EngineFailed", error).__cause__) for error in told] == ["no JSON"] * 3
    slots.error = None
    await watch.until_idle(0)
    assert slots.asked == 2


async def test_nobody_waits_for_a_question_that_was_cancelled_before_it_was_put() -> None:
    """As at the end of a loop, which cancels all tasks."""
    slots = Slots(1)
    watch = slots.watch()
    task = asyncio.create_task(watch.until_idle(1))
    while watch._asking is None:
        await asyncio.sleep(0)
    assert slots.asked == 0
    watch._asking.cancel()
    async with asyncio.timeout(5):
        await task
    assert slots.asked == 0
    slots.busy.clear()
    slots.say.set()
    await watch.until_idle(1)
    assert slots.asked == 1


async def test_who_comes_as_the_questions_end_is_asked_for_by_new_ones() -> None:
    slots = Slots()
    slots.say.set()
    watch = slots.watch()
    first = asyncio.create_task(watch.until_idle(0))
    await until(lambda: watch._asking is not None)
    over = watch._asking
    assert over is not None
    await until(over.done)
    slots.busy.add(2)
    second = asyncio.create_task(watch.until_idle(2))
    await until(lambda: slots.asked > 2)
    assert (first.done(), second.done()) == (True, False)
    slots.busy.clear()
    await asyncio.gather(first, second)


async def test_a_constraint_that_is_compiled_for_nobody_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drivetrain.engines.llamacpp.idle.STUCK_S", 0.01)
    slots = Slots(1)
    async with asyncio.timeout(60):
        await slots.watch().until_idle(1, compiling=True)
    assert slots.ended


async def test_a_long_step_for_somebody_who_left_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drivetrain.engines.llamacpp.idle.STUCK_S", 0.01)
    slots = Slots()
    idle = asyncio.create_task(slots.watch().until_idle(1))
    await asyncio.sleep(0.05)  # several times as long as would end it
    slots.say.set()
    async with asyncio.timeout(60):
        await idle
    assert not slots.ended

"""The gate: order, bounds, and slots that come back exactly once."""

from __future__ import annotations

import asyncio

import pytest

from drivetrain.core.errors import NotReady, Overloaded
from drivetrain.worker.admission import Admission


async def test_first_come_first_served() -> None:
    gate = Admission(max_running=1, max_waiting=3)
    first = await gate.enter().wait()
    order: list[int] = []

    async def wait(i: int) -> None:
        slot = await gate.enter().wait()
        order.append(i)
        slot.release()

    tasks = [asyncio.create_task(wait(i)) for i in range(3)]
    await asyncio.sleep(0)
    assert (gate.running, gate.waiting) == (1, 3)
    first.release()
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2]
    assert (gate.running, gate.waiting) == (0, 0)


async def test_a_slot_is_released_once_however_often_it_is_asked() -> None:
    gate = Admission(max_running=2, max_waiting=0)
    slot = await gate.enter().wait()
    await gate.enter().wait()
    slot.release()
    slot.release()
    assert gate.running == 1


async def test_full_is_refused_at_once() -> None:
    gate = Admission(max_running=1, max_waiting=1)
    await gate.enter().wait()
    gate.enter()
    with pytest.raises(Overloaded):
        gate.enter()


async def test_a_newcomer_does_not_overtake_those_who_wait() -> None:
    gate = Admission(max_running=1, max_waiting=5)
    first = await gate.enter().wait()
    second = gate.enter()
    first.release()  # second has the slot now, though it has not woken up
    third = gate.enter()
    assert (gate.running, gate.waiting) == (1, 1)
    (await second.wait()).release()
    (await third.wait()).release()
    assert gate.running == 0


async def test_a_cancelled_waiter_leaves_the_queue_and_loses_no_slot() -> None:
    gate = Admission(max_running=1, max_waiting=5)
    first = await gate.enter().wait()
    waiting = asyncio.create_task(gate.enter().wait())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert gate.waiting == 0
    granted = asyncio.create_task(gate.enter().wait())
    await asyncio.sleep(0)
    first.release()
    granted.cancel()  # it has been given the slot, but has not seen it
    await asyncio.gather(granted, return_exceptions=True)
    assert gate.running == 0


async def test_closing_ends_the_wait_with_its_error() -> None:
    gate = Admission(max_running=1, max_waiting=5)
    first = await gate.enter().wait()
    other = gate.enter()
    gate.close("closing")
    with pytest.raises(NotReady):
        await other.wait()
    with pytest.raises(NotReady):
        gate.enter()
    assert not await gate.idle(0.01)
    first.release()
    assert await gate.idle(0.01)


async def test_a_line_that_is_held_goes_on_with_the_next_engine() -> None:
    gate = Admission(max_running=1, max_waiting=2)
    lost = await gate.enter().wait()
    waiting = gate.enter()
    gate.hold()
    assert (gate.running, gate.waiting, gate.waits_for_engine, lost.is_good) == (0, 1, True, False)
    newcomer, again = gate.enter(), gate.enter_again()
    with pytest.raises(Overloaded):
        gate.enter()
    gate.open(1)
    lost.release()  # it went with its engine
    order = []
    for name, ticket in (("again", again), ("waiting", waiting), ("newcomer", newcomer)):
        assert gate.running == 1
        slot = await ticket.wait()
        order.append((name, slot.is_good))
        slot.release()
    assert order == [("again", True), ("waiting", True), ("newcomer", True)]
    assert (gate.running, gate.waiting) == (0, 0)


async def test_a_slot_on_an_engine_that_failed_before_it_was_taken_is_given_again() -> None:
    gate = Admission(max_running=1, max_waiting=2)
    ticket = gate.enter()  # granted
    gate.hold()
    waiting = asyncio.create_task(ticket.wait())
    await asyncio.sleep(0)
    assert (gate.running, gate.waiting, waiting.done()) == (0, 1, False)
    gate.open(1)
    assert (await waiting).is_good
    assert gate.running == 1


async def test_nobody_is_admitted_to_an_engine_that_is_dead() -> None:
    alive = True
    gate = Admission(max_running=1, max_waiting=2, alive=lambda: alive, patient=lambda: True)
    slot = await gate.enter().wait()
    waiting = gate.enter()
    alive = False
    slot.release()
    assert (gate.running, gate.waiting) == (0, 1)
    gate.close("it does not recover")
    with pytest.raises(NotReady):
        await waiting.wait()
    with pytest.raises(NotReady):
        gate.enter_again()

"""The gate: order, bounds, and slots that come back exactly once."""

from __future__ import annotations

import asyncio

import pytest

from drivetrain.core.errors import DeviceLost, EngineFailed, NotReady, OutOfMemory, Overloaded
from drivetrain.worker.admission import Admission, Slot, Suspicion, Ticket


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
    newcomer, again = gate.enter(), gate.enter_again(Suspicion.NONE)
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
        gate.enter_again(Suspicion.NONE)


# Suspects: requests that were in an engine when it failed


async def failed(num: int, *, max_running: int = 4, max_waiting: int = 9) -> Admission:
    """The gate of an engine that failed with so many requests in it."""
    gate = Admission(max_running=max_running, max_waiting=max_waiting)
    for _ in range(num):
        await gate.enter().wait()
    gate.hold()
    return gate


async def granted(ticket: Ticket) -> Slot:
    async with asyncio.timeout(30):
        return await ticket.wait()


def waits(*tickets: Ticket) -> list[bool]:
    return [not ticket.granted for ticket in tickets]


@pytest.mark.parametrize("suspicion", [Suspicion.LIGHT, Suspicion.GRAVE])
async def test_a_suspect_comes_first_and_alone(suspicion: Suspicion) -> None:
    gate = await failed(3)
    newcomer, returned, suspect = gate.enter(), gate.enter_again(Suspicion.NONE), gate.enter_again(suspicion)
    gate.open(4)
    slot = await granted(suspect)
    assert waits(newcomer, returned, gate.enter()) == [True, True, True]
    assert gate.spare() is None
    slot.prove()
    assert waits(newcomer, returned) == [False, False]
    assert gate.running == 4


async def test_a_suspect_that_ends_unproven_lets_the_others_in() -> None:
    gate = await failed(2)
    suspect, newcomer = gate.enter_again(Suspicion.GRAVE), gate.enter()
    gate.open(4)
    slot = await granted(suspect)
    assert waits(newcomer) == [True]
    slot.release()
    slot.prove()  # too late to mean anything
    assert waits(newcomer) == [False]
    assert gate.running == 1
    assert waits(gate.enter()) == [False]


async def test_suspects_start_one_by_one_each_when_the_one_before_is_answered() -> None:
    gate = await failed(3)
    first, second, third = (gate.enter_again(Suspicion.LIGHT) for _ in range(3))
    newcomer = gate.enter()
    gate.open(4)
    assert waits(first, second, third, newcomer) == [False, True, True, True]
    (await granted(first)).prove()
    assert waits(second, third, newcomer) == [False, True, True]
    slot = await granted(second)
    slot.prove()
    slot.prove()
    assert waits(third, newcomer) == [False, True]
    (await granted(third)).prove()
    assert waits(newcomer) == [False]
    assert gate.running == 4


async def test_grave_suspects_come_before_the_rest_each_when_the_one_before_is_answered() -> None:
    gate = await failed(3)
    light, first, second = (gate.enter_again(each) for each in (Suspicion.LIGHT, Suspicion.GRAVE, Suspicion.GRAVE))
    newcomer = gate.enter()
    gate.open(4)
    assert waits(first, second, light, newcomer) == [False, True, True, True]
    (await granted(first)).prove()
    assert waits(second, light, newcomer) == [False, True, True]
    (await granted(second)).prove()
    assert waits(light, newcomer) == [False, True]
    (await granted(light)).prove()
    assert waits(newcomer) == [False]


async def test_a_grave_suspect_starts_beside_nobody_of_another_kind() -> None:
    gate = await failed(2)
    light = gate.enter_again(Suspicion.LIGHT)
    gate.open(4)
    slot = await granted(light)
    grave, newcomer = gate.enter_again(Suspicion.GRAVE), gate.enter()
    slot.prove()
    assert waits(grave, newcomer) == [True, True]
    slot.release()
    assert waits(grave, newcomer) == [False, True]


async def test_a_suspect_that_comes_late_waits_for_those_that_run_and_holds_up_those_that_do_not() -> None:
    gate = await failed(2)
    gate.open(4)
    running = await granted(gate.enter())
    suspect, newcomer = gate.enter_again(Suspicion.LIGHT), gate.enter()
    assert waits(suspect, newcomer) == [True, True]
    running.release()
    assert waits(suspect, newcomer) == [False, True]


async def test_a_suspect_that_leaves_while_it_waits_holds_up_nobody() -> None:
    gate = await failed(2)
    gate.open(4)
    running = await granted(gate.enter())
    suspect, newcomer = gate.enter_again(Suspicion.GRAVE), gate.enter()
    waiting = asyncio.create_task(suspect.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert waits(newcomer) == [False]
    assert (gate.running, gate.waiting) == (2, 0)
    running.release()


async def test_a_suspect_whose_next_engine_fails_before_it_gets_there_stays_one() -> None:
    gate = await failed(1)
    suspect = gate.enter_again(Suspicion.GRAVE)
    gate.open(4)
    gate.hold()
    waiting = asyncio.create_task(suspect.wait())
    await asyncio.sleep(0)
    newcomer = gate.enter()
    gate.open(4)
    assert (await waiting).is_good
    assert waits(newcomer) == [True]


async def test_closing_ends_the_wait_of_suspects() -> None:
    gate = await failed(2)
    suspects = [gate.enter_again(Suspicion.GRAVE), gate.enter_again(Suspicion.LIGHT)]
    gate.close("closing")
    for suspect in suspects:
        with pytest.raises(NotReady):
            await granted(suspect)


async def test_who_ran_out_of_memory_starts_again_only_where_the_engine_died_of_it() -> None:
    gate = Admission(max_running=2, max_waiting=0)
    slot = await gate.enter().wait()
    gate.hold()
    assert gate.goes_on(slot, EngineFailed("it died"))
    assert gate.goes_on(slot, OutOfMemory("it died of it", ended_engine=True))
    assert not gate.goes_on(slot, OutOfMemory("its own share"))
    assert not gate.goes_on(slot, DeviceLost("for all"))

"""A worker that will never serve again: noticed by itself, told as it is, replaced, and not again and again."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from fleet_rig import Book, StubWorker, name_of, settle

from drivetrain.core.errors import NotLoaded
from drivetrain.core.status import State
from drivetrain.scale.fleet import fleet as fleet_module
from drivetrain.scale.fleet import placement
from drivetrain.scale.fleet.failure import LAST_RETRY_S
from drivetrain.scale.fleet.fleet import Fleet


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "WATCH_S", 0.01)
    monkeypatch.setattr(placement, "LOOK_AGAIN_S", 0.01)


def fail(fleet: Fleet, name: str) -> None:
    cast("StubWorker", fleet.find(name)).state = State.FAILED


def ready(fleet: Fleet) -> bool:
    return fleet.ready


def state(fleet: Fleet, name: str) -> str:
    return fleet.member(name).state


async def until_it_is(fleet: Fleet, name: str, wanted: str) -> None:
    async with asyncio.timeout(10):
        while state(fleet, name) != wanted or (wanted == "failed" and fleet.member(name).worker is not None):
            await asyncio.sleep(0.002)


async def used(fleet: Fleet, name: str) -> str:
    async with fleet.lease(name) as worker:
        return name_of(worker)


async def test_one_that_nobody_uses_is_unloaded_and_the_next_request_has_it_loaded() -> None:
    book = Book()
    fleet = book.fleet(book.offer("a"), book.offer("b"))
    await fleet.start()
    fail(fleet, "a")
    assert not ready(fleet)
    await until_it_is(fleet, "a", "failed")
    assert ready(fleet), "it is loaded on demand"
    assert book.alive == {"a": 0, "b": 1}
    report = fleet.report()[0]
    assert report["failure"] == {"message": "its engine failed and could not be restarted", "retry_in_s": 0.0}
    assert (report["loaded_s"], report["unloads"]) == (None, 1)
    assert await used(fleet, "a") == "a"
    assert book.opened == ["a", "b", "a"]
    assert fleet.report()[0]["failure"] is None
    await fleet.stop()


async def test_one_that_is_pinned_is_loaded_anew_without_a_request() -> None:
    book = Book()
    fleet = book.fleet(book.offer("a", pinned=True))
    await fleet.start()
    fail(fleet, "a")
    assert not ready(fleet)
    async with asyncio.timeout(10):
        while book.opened != ["a", "a"] or not ready(fleet):
            await asyncio.sleep(0.002)
    await fleet.stop()


async def test_one_that_fails_soon_after_each_load_is_tried_less_and_less_often() -> None:
    book = Book()
    fleet = book.fleet(book.offer("a", pinned=True), book.offer("b"))
    await fleet.start()
    for wait_s in (0.0, 5.0, 10.0):
        fail(fleet, "a")
        if wait_s:
            await until_it_is(fleet, "a", "failed")
            assert not ready(fleet)
            assert fleet.report()[0]["failure"]["retry_in_s"] == wait_s
            with pytest.raises(NotLoaded, match="its engine failed") as caught:
                await used(fleet, "a")
            assert caught.value.retry_after_s == wait_s
            loads = len(book.opened)
            await asyncio.sleep(0.05)
            assert len(book.opened) == loads
            book.now += wait_s
            fleet.placement.decide()  # as its timer does when the time has come
        await until_it_is(fleet, "a", "ready")
    book.now += LAST_RETRY_S
    fail(fleet, "a")
    await settle()
    assert await used(fleet, "a") == "a", "after a long life it is tried again at once"
    await fleet.stop()


async def test_who_waits_for_one_that_failed_again_is_refused() -> None:
    book = Book()
    fleet = book.fleet(book.offer("a"))
    await fleet.start()
    fail(fleet, "a")
    assert await used(fleet, "a") == "a"
    running = fleet.lease("a")
    fail(fleet, "a")
    waiting = asyncio.create_task(used(fleet, "a"))
    await settle()
    assert not waiting.done()
    running.release()
    with pytest.raises(NotLoaded, match="its engine failed"):
        await waiting
    assert book.opened == ["a", "a"]
    await fleet.stop()


async def test_an_unload_in_order_begins_anew() -> None:
    book = Book()
    fleet = book.fleet(book.offer("a"))
    await fleet.start()
    fail(fleet, "a")
    assert await used(fleet, "a") == "a"
    fleet.unload("a")
    await settle()
    assert await used(fleet, "a") == "a"
    fail(fleet, "a")
    await until_it_is(fleet, "a", "failed")
    assert await used(fleet, "a") == "a"
    await fleet.stop()


async def test_one_that_hangs_while_it_is_unloaded_is_told_as_a_fault() -> None:
    book = Book()
    fleet = book.fleet(book.offer("a"), book.offer("b"))
    await fleet.start()
    book.by_hand = True
    fail(fleet, "a")
    await until_it_is(fleet, "a", "unloading")
    await asyncio.sleep(0.05)
    assert not ready(fleet), "its memory is not free, and only a new process frees it"
    book.stopping["a"].set_result(None)
    await until_it_is(fleet, "a", "failed")
    assert ready(fleet)
    book.by_hand = False
    await fleet.stop()

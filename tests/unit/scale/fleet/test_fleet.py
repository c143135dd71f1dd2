"""The fleet's own words: who waits, what is refused and how, what an administrator may do, how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from fleet_rig import Book, StubWorker, name_of, settle

from drivetrain.core.engine import Progress
from drivetrain.core.errors import (
    DeadlineExceeded,
    EngineFailed,
    InvalidRequest,
    InvalidSetting,
    LoadFailed,
    ModelNotFound,
    NotLoaded,
    NotReady,
    OutOfMemory,
    Overloaded,
)
from drivetrain.core.stats import ENDINGS
from drivetrain.core.status import State
from drivetrain.scale.fleet.failure import reason, retry_after_s
from drivetrain.scale.fleet.fleet import Fleet
from drivetrain.scale.fleet.offer import Offer, Opened


async def used(fleet: Fleet, name: str, timeout_s: float | None = None) -> str:
    async with fleet.lease(name, timeout_s) as worker:
        return name_of(worker)


def ready(fleet: Fleet) -> bool:
    return fleet.ready


def refused(act: Callable[[str], object], name: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        act(name)


def states(fleet: Fleet) -> dict[str, str]:
    return {member.name: member.state for member in fleet.members}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


async def test_at_the_start_what_fits_is_loaded_in_order_and_the_pinned_first() -> None:
    book = Book()
    fleet = book.fleet(book.offer("a"), book.offer("b"), book.offer("c", pinned=True), max_loaded=2)
    assert not ready(fleet)
    await fleet.start()
    assert book.opened == ["c", "a"]
    assert ready(fleet)
    assert states(fleet) == {"a": "ready", "b": "unloaded", "c": "ready"}
    await fleet.stop()
    assert not book.alive.total()


async def test_at_the_start_one_is_loaded_after_the_other() -> None:
    book = Book(by_hand=True)
    fleet = book.fleet(*(book.offer(name, pinned=True) for name in "abc"))
    starting = asyncio.create_task(fleet.start())
    for name in "abc":
        await settle()
        assert list(book.opening) == [name]
        assert not starting.done()
        book.opening[name].set_result(None)
    await starting
    assert ready(fleet)
    book.by_hand = False
    await fleet.stop()


async def test_at_the_start_nothing_is_unloaded_for_memory() -> None:
    book = Book()
    book.free_bytes = 10
    fleet = book.fleet(book.offer("a", size_bytes=lambda: 6), book.offer("b", size_bytes=lambda: 11))
    await fleet.start()
    assert book.opened == ["a"]
    await fleet.stop()


async def test_one_that_fails_at_the_start_does_not_end_it() -> None:
    book = Book()
    book.failures = {"a": [LoadFailed("it is broken")]}
    fleet = book.fleet(book.offer("a"), book.offer("b"), max_loaded=1)
    await fleet.start()
    assert states(fleet) == {"a": "failed", "b": "ready"}
    assert ready(fleet)
    await fleet.stop()


async def test_where_none_could_be_loaded_the_first_failure_is_told() -> None:
    book = Book()
    book.failures = {"a": [LoadFailed("first")], "b": [LoadFailed("second")]}
    fleet = book.fleet(book.offer("a"), book.offer("b"))
    with pytest.raises(LoadFailed, match="first"):
        await fleet.start()
    await fleet.stop()


async def test_one_makes_room_for_the_other() -> None:
    book = Book()
    fleet = book.fleet(book.offer("a"), book.offer("b", aliases=("gpt",)), max_loaded=1)
    await fleet.start()
    assert [await used(fleet, name) for name in ("a", "gpt", "b", "a")] == ["a", "b", "b", "a"]
    assert book.opened == ["a", "b", "a"]
    assert book.alive == {"a": 1, "b": 0}
    await fleet.stop()


async def test_requests_for_a_model_that_is_loading_wait_and_count() -> None:
    book = Book(by_hand=True)
    fleet = book.fleet(book.offer("a", max_waiting=2))
    waiting = [asyncio.create_task(used(fleet, "a")) for _ in range(2)]
    await settle()
    assert fleet.member("a").num_waiting == 2
    assert fleet.report()[0]["progress"] == {"what": "reading", "share": 0.5}
    with pytest.raises(Overloaded, match="2 requests are already waiting for a"):
        await used(fleet, "a")
    book.now += 3
    book.opening["a"].set_result(None)
    assert await asyncio.gather(*waiting) == ["a", "a"]
    assert book.opened == ["a"]
    waited = fleet.member("a").stats.load_wait_s
    assert (waited.count, waited.sum) == (2, 6.0)
    book.by_hand = False
    await fleet.stop()


async def test_the_wait_is_within_the_requests_own_time() -> None:
    book = Book(by_hand=True)
    fleet = book.fleet(book.offer("a", max_timeout_s=5.0))
    with pytest.raises(DeadlineExceeded, match=r"0\.05 seconds"):
        await used(fleet, "a", timeout_s=0.05)
    assert fleet.member("a").num_waiting == 0
    for wrong in (6.0, 0.0, -1.0):
        with pytest.raises(InvalidRequest) as caught:
            await used(fleet, "a", timeout_s=wrong)
        assert caught.value.param == "timeout_s"
    lease = fleet.lease("a", 5.0)
    waiting = asyncio.create_task(lease.wait())
    await settle()
    await asyncio.sleep(0.05)
    book.opening["a"].set_result(None)
    await waiting
    assert lease.left_s is not None
    assert 0 < lease.left_s < 4.96
    lease.release()
    book.by_hand = False
    await fleet.stop()


async def test_who_gives_up_leaves_nothing() -> None:
    book = Book(by_hand=True)
    fleet = book.fleet(book.offer("a"))
    waiting = asyncio.create_task(used(fleet, "a"))
    await settle()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert fleet.member("a").num_waiting == 0
    book.opening["a"].set_result(None)
    await settle()
    assert fleet.member("a").leases == 0
    book.by_hand = False
    await fleet.stop()


async def test_a_busy_model_takes_no_more_once_its_turn_is_over_and_gets_the_place_back_later() -> None:
    book = Book()
    fleet = book.fleet(book.offer("a"), book.offer("b"), max_loaded=1, turn_s=5)
    await fleet.start()
    running = fleet.lease("a")
    other = asyncio.create_task(used(fleet, "b"))
    await settle()
    assert await used(fleet, "a") == "a", "its turn is not over"
    book.now += 5
    fleet.placement.decide()
    behind = asyncio.create_task(used(fleet, "a"))
    await settle()
    assert not behind.done()
    assert states(fleet)["a"] == "ready", "one in use is never unloaded"
    running.release()
    assert await other == "b"
    assert await behind == "a"
    assert book.opened == ["a", "b", "a"]
    await fleet.stop()


async def test_a_request_that_waits_too_long_for_room_is_refused() -> None:
    book = Book()
    fleet = book.fleet(book.offer("a"), book.offer("b"), max_loaded=1, room_wait_s=30)
    await fleet.start()
    running = fleet.lease("a")
    other = asyncio.create_task(used(fleet, "b"))
    await settle()
    book.now += 30
    fleet.placement.decide()
    with pytest.raises(NotReady, match="in use") as caught:
        await other
    assert caught.value.retry_after_s > 0
    assert await used(fleet, "a") == "a", "nobody waits for its place any more"
    running.release()
    await fleet.stop()


async def test_beside_pinned_models_there_may_be_no_room() -> None:
    book = Book()
    fleet = book.fleet(book.offer("a", pinned=True), book.offer("b"), max_loaded=1)
    await fleet.start()
    with pytest.raises(NotLoaded, match="no room for b"):
        await used(fleet, "b")
    await fleet.stop()


async def test_a_failed_load_is_told_and_tried_again_after_a_while() -> None:
    book = Book()
    book.failures = {"b": [LoadFailed("the file /models/b.gguf is broken"), RuntimeError("secret")]}
    fleet = book.fleet(book.offer("a"), book.offer("b"))
    await fleet.start()
    with pytest.raises(NotLoaded, match="b could not be loaded: the file … is broken") as caught:
        await used(fleet, "b")
    assert caught.value.retry_after_s == 5.0
    assert await used(fleet, "a") == "a"
    assert ready(fleet)
    book.now += 5
    with pytest.raises(NotLoaded, match="the server's log says why") as caught:
        await used(fleet, "b")
    assert caught.value.retry_after_s == 10.0
    assert fleet.report()[1]["failure"]["retry_in_s"] == 10.0
    book.now += 10
    assert await used(fleet, "b") == "b"
    assert fleet.report()[1]["failure"] is None
    await fleet.stop()


async def test_where_memory_ran_out_idle_models_go_and_it_is_tried_again() -> None:
    book = Book()
    fleet = book.fleet(book.offer("a"), book.offer("b"), book.offer("c", pinned=True))
    await fleet.start()
    fleet.unload("b")
    await settle()
    book.failures = {"b": [OutOfMemory("too little")]}
    assert await used(fleet, "b") == "b"
    assert states(fleet) == {"a": "unloaded", "b": "ready", "c": "ready"}
    book.failures = {"a": [OutOfMemory("too little"), OutOfMemory("still too little")]}
    with pytest.raises(NotLoaded, match="still too little"):
        await used(fleet, "a")
    await fleet.stop()


@pytest.mark.parametrize("by", ["request", "administrator", "pin"])
async def test_nothing_goes_for_a_model_whose_files_are_broken(by: str) -> None:
    book = Book()
    fleet = book.fleet(book.offer("a"), book.offer("b"), max_loaded=1)
    await fleet.start()
    book.spoilt = {"b": "b.gguf is truncated"}
    if by == "request":
        with pytest.raises(NotLoaded, match=r"b could not be loaded: b\.gguf is truncated") as caught:
            await used(fleet, "b")
        assert caught.value.retry_after_s == 5.0
    else:
        (fleet.load if by == "administrator" else fleet.pin)("b")
    await settle()
    assert states(fleet) == {"a": "ready", "b": "failed"}
    assert fleet.report()[1]["failure"]["message"] == "b.gguf is truncated"
    assert book.opened == ["a"]
    book.spoilt = {}
    book.now += 5
    assert await used(fleet, "b") == "b"
    assert states(fleet) == {"a": "unloaded", "b": "ready"}
    await fleet.stop()


async def test_a_model_that_nobody_uses_is_unloaded() -> None:
    book = Book()
    fleet = book.fleet(book.offer("a"), book.offer("b", pinned=True), idle_s=60)
    await fleet.start()
    book.now += 59
    fleet.placement.decide()
    assert states(fleet) == {"a": "ready", "b": "ready"}
    book.now += 1
    fleet.placement.decide()
    await settle()
    assert states(fleet) == {"a": "unloaded", "b": "ready"}
    assert ready(fleet), "one that is loaded on demand is no fault"
    assert await used(fleet, "a") == "a"
    await fleet.stop()


async def test_the_timer_itself_unloads() -> None:
    book = Book()
    fleet = Fleet([book.offer("a")], book.fleet(book.offer("x"), idle_s=0.02).limits)
    await fleet.start()
    await until(lambda: states(fleet) == {"a": "unloaded"})
    await fleet.stop()


async def test_what_an_administrator_may_do() -> None:
    book = Book()
    fleet = book.fleet(book.offer("a"), book.offer("b"), max_loaded=1)
    await fleet.start()
    running = fleet.lease("a")
    refused(fleet.unload, "a", "1 requests are using a")
    running.release()
    fleet.unload("a")
    await settle()
    fleet.load("b")
    await until(lambda: states(fleet) == {"a": "unloaded", "b": "ready"})
    fleet.pin("b")
    refused(fleet.unload, "b", "b is pinned; unpin it first")
    refused(fleet.pin, "a", "1 models are pinned")
    fleet.unpin("b")
    fleet.pin("a")
    await until(lambda: states(fleet) == {"a": "ready", "b": "unloaded"})
    with pytest.raises(ModelNotFound):
        fleet.load("c")
    await fleet.stop()


async def test_a_load_can_be_given_up_and_begun_at_once_after_a_failure() -> None:
    book = Book(by_hand=True)
    fleet = book.fleet(book.offer("a"))
    fleet.load("a")
    await settle()
    assert states(fleet) == {"a": "loading"}
    fleet.unload("a")
    await settle()
    assert states(fleet) == {"a": "unloaded"}
    book.by_hand = False
    book.failures = {"a": [LoadFailed("broken")]}
    fleet.load("a")
    await until(lambda: states(fleet) == {"a": "failed"})
    fleet.load("a")
    await until(lambda: states(fleet) == {"a": "ready"})
    await fleet.stop()


async def test_a_load_that_is_given_up_at_the_start_does_not_end_it() -> None:
    book = Book(by_hand=True)
    fleet = book.fleet(book.offer("a"), book.offer("b"))
    starting = asyncio.create_task(fleet.start())
    await settle()
    fleet.unload("a")
    await settle()
    book.by_hand = False
    book.opening["b"].set_result(None)
    await starting
    assert states(fleet) == {"a": "unloaded", "b": "ready"}
    await fleet.stop()


async def test_what_an_administrator_wants_loaded_waits_for_room() -> None:
    book = Book()
    fleet = book.fleet(book.offer("a"), book.offer("b"), max_loaded=1, turn_s=0)
    await fleet.start()
    running = fleet.lease("a")
    fleet.load("b")
    assert fleet.report()[1]["progress"] == {"what": "waiting for room", "share": None}
    fleet.unload("b")
    assert fleet.report()[1]["progress"] is None
    assert await used(fleet, "a") == "a"
    fleet.load("b")
    running.release()
    await until(lambda: states(fleet) == {"a": "unloaded", "b": "ready"})
    await fleet.stop()


async def test_a_pinned_model_is_tried_again_without_a_request() -> None:
    book = Book()
    book.failures = {"a": [LoadFailed("broken")]}
    fleet = book.fleet(book.offer("a", pinned=True), book.offer("b"))
    await fleet.start()
    assert not ready(fleet)
    book.now += 5
    fleet.placement.decide()
    await settle()
    assert states(fleet)["a"] == "ready"
    assert ready(fleet)
    await fleet.stop()


async def test_the_end_refuses_who_waits_and_gives_up_what_is_loading() -> None:
    book = Book(by_hand=True)
    fleet = book.fleet(book.offer("a"), book.offer("b"))
    waiting = asyncio.create_task(used(fleet, "a"))
    fleet.load("b")
    await settle()
    await fleet.drain(0.0)
    with pytest.raises(NotReady, match="shutting down"):
        await waiting
    with pytest.raises(NotReady, match="shutting down"):
        await used(fleet, "a")
    await fleet.stop()
    await fleet.stop()
    assert not book.alive.total()
    assert not book.opening


async def test_nothing_is_given_out_while_a_load_is_slow_to_give_up() -> None:
    stubborn = asyncio.Event()

    async def slow(report: Progress) -> Opened:
        try:
            await asyncio.sleep(60)
        finally:
            await stubborn.wait()
        raise AssertionError

    book = Book()
    fleet = Fleet([book.offer("a"), Offer(name="b", open=slow)])
    fleet.load("a")
    await settle()
    fleet.load("b")
    await settle()
    worker = fleet.find("a")
    draining = asyncio.create_task(fleet.drain(0.0))
    await settle()
    assert not draining.done()
    assert worker.state is State.DRAINING
    with pytest.raises(NotReady, match="shutting down"):
        await used(fleet, "a")
    stubborn.set()
    await draining
    await fleet.stop()


async def test_a_load_that_is_given_up_leaves_the_evictions_that_it_began_alone() -> None:
    book = Book()
    fleet = book.fleet(book.offer("a"), book.offer("b"))
    await fleet.start()
    fleet.unload("b")
    await settle()
    book.failures = {"b": [OutOfMemory("too little")]}
    book.by_hand = True
    fleet.load("b")
    await settle()
    book.opening["b"].set_result(None)
    await settle()
    assert states(fleet) == {"a": "unloading", "b": "loading"}
    fleet.unload("b")
    await settle()
    assert states(fleet) == {"a": "unloading", "b": "unloaded"}, "its memory is not free yet"
    stopping = asyncio.create_task(fleet.stop())
    await settle()
    assert not stopping.done()
    book.stopping["a"].set_result(None)
    await stopping
    assert not book.alive.total()


async def test_a_first_failure_waits_for_what_requests_have_loaded() -> None:
    book = Book(by_hand=True)
    book.failures = {"a": [LoadFailed("broken")]}
    fleet = book.fleet(book.offer("a"), book.offer("b"))
    starting = asyncio.create_task(fleet.start())
    await settle()
    asked = asyncio.create_task(used(fleet, "b"))
    await settle()
    book.opening["a"].set_result(None)
    await settle()
    assert states(fleet) == {"a": "failed", "b": "loading"}
    assert not starting.done()
    book.opening["b"].set_result(None)
    await starting
    assert await asked == "b"
    book.by_hand = False
    await fleet.stop()


async def test_a_load_that_is_given_up_before_it_began_can_be_begun_again() -> None:
    book = Book()
    fleet = book.fleet(book.offer("a"), book.offer("b"), max_loaded=1)
    fleet.load("a")
    fleet.unload("a")
    await settle()
    assert states(fleet) == {"a": "unloaded", "b": "unloaded"}
    assert await used(fleet, "b") == "b"
    assert await used(fleet, "a") == "a"
    await fleet.stop()


async def test_each_request_that_gets_no_worker_is_counted_once() -> None:
    book = Book(by_hand=True)
    fleet = book.fleet(book.offer("a", max_waiting=2))
    stats = fleet.member("a").offer.stats
    given_up, late = asyncio.create_task(used(fleet, "a")), asyncio.create_task(used(fleet, "a", 0.05))
    await settle()
    with pytest.raises(Overloaded):
        await used(fleet, "a")
    given_up.cancel()
    with pytest.raises(DeadlineExceeded):
        await late
    book.failures = {"a": [LoadFailed("broken")]}
    failing = asyncio.create_task(used(fleet, "a"))
    await settle()
    book.opening["a"].set_result(None)
    with pytest.raises(NotLoaded):
        await failing
    assert stats.endings == {"overloaded": 1, "cancelled": 1, "deadline_exceeded": 1, "not_loaded": 1}
    assert set(stats.endings) <= set(ENDINGS)
    book.by_hand = False
    book.now += 5
    assert await used(fleet, "a") == "a"
    assert await used(fleet, "a") == "a"
    assert stats.endings.total() == 4
    assert not fleet.find("a").stats.endings, "its worker counts those that it got"
    await fleet.stop()


async def test_one_may_wait_for_a_model_that_takes_no_queue() -> None:
    book = Book()
    fleet = book.fleet(book.offer("a", max_waiting=0))
    assert await used(fleet, "a") == "a"
    await fleet.stop()


async def test_what_a_worker_reports_later_is_no_progress_of_a_load() -> None:
    book = Book()
    reports: list[Progress] = []

    async def talkative(report: Progress) -> Opened:
        reports.append(report)
        return await book.offer("a").open(report)

    fleet = Fleet([Offer(name="a", open=talkative)])
    await fleet.start()
    reports[0]("reading", 0.5)
    assert fleet.report()[0]["progress"] is None
    await fleet.stop()


@pytest.mark.parametrize("pinned", [True, False])
async def test_one_whose_engine_will_not_come_back_is_loaded_anew(pinned: bool) -> None:
    book = Book()
    fleet = book.fleet(book.offer("a", pinned=pinned), book.offer("b"), max_loaded=1)
    await fleet.start()
    running = fleet.lease("a")
    cast("StubWorker", fleet.find("a")).state = State.FAILED
    again = asyncio.create_task(used(fleet, "a"))
    await settle()
    assert not again.done(), "one in use is never unloaded"
    running.release()
    assert await again == "a"
    assert book.opened == ["a", "a"]
    await fleet.stop()


async def test_of_running_workers() -> None:
    book = Book()
    offer = book.offer("a")
    worker = await offer.open(lambda what, share: None)
    fleet = Fleet.of({"a": worker})
    assert ready(fleet)
    assert await used(fleet, "a") == "a"
    refused(fleet.unload, "a", "cannot be unloaded: it stays loaded as long as the server runs")
    refused(fleet.unpin, "a", "cannot be unpinned: it stays loaded as long as the server runs")
    await fleet.drain(0.0)
    assert not ready(fleet)
    await fleet.stop()
    assert book.alive["a"] == 1, "it is somebody else's"


async def test_a_worker_of_somebody_else_that_failed_is_lost_unless_it_is_replaced() -> None:
    book = Book()
    worker = cast("Any", await book.offer("a").open(lambda what, share: None))
    own = book.fleet(book.offer("a"))
    await own.start()
    fleets = [Fleet.of({"a": worker}), Fleet.of({"a": worker}, replaced=True), own]
    assert not any(fleet.lost for fleet in fleets)
    worker.state = cast("Any", own.find("a")).state = State.FAILED
    assert [fleet.lost for fleet in fleets] == [True, False, False]
    await own.stop()


def test_names_are_of_one_model() -> None:
    book = Book()
    with pytest.raises(InvalidSetting, match="two models"):
        book.fleet(book.offer("a"), book.offer("b", aliases=("a",)))
    with pytest.raises(InvalidSetting, match="pinned"):
        book.fleet(book.offer("a", pinned=True), book.offer("b", pinned=True), max_loaded=1)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (LoadFailed("no file ~/x/y.gguf here"), "no file … here"),
        (LoadFailed("../a/b, and /c"), "…, and …"),
        (LoadFailed("org/name and/or http://host/v1"), "org/name and/or http://host/v1"),
        (EngineFailed("it died"), "it died"),
        (OSError("/etc/secret"), "it could not be opened; the server's log says why"),
    ],
)
def test_reasons(error: Exception, told: str) -> None:
    assert reason(error) == told


def test_each_failure_waits_twice_as_long() -> None:
    assert [retry_after_s(n) for n in (1, 2, 3, 9, 99)] == [5, 10, 20, 300, 300]


async def test_a_lease_that_is_granted_as_its_request_is_cancelled_is_given_back() -> None:
    book = Book(by_hand=True)
    fleet = book.fleet(book.offer("a"))
    waiting: Any = asyncio.create_task(used(fleet, "a"))
    await settle()
    book.opening["a"].set_result(None)
    while not fleet.member("a").leases:
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()
    assert fleet.member("a").leases == 0
    book.by_hand = False
    await fleet.stop()

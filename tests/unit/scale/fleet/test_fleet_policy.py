"""The policy alone: who is loaded, who leaves, who waits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.scale.fleet.policy import FleetLimits, Plan, Seat, Stage, fits, plan

NOW = 1000.0
PLENTY = float("inf")


def ready(name: str, **more: Any) -> Seat:
    return Seat(name=name, stage=Stage.READY, **more)


def wanted(name: str, since: float = 900.0, **more: Any) -> Seat:
    return Seat(name=name, stage=Stage.UNLOADED, wanted_since=since, **more)


def decide(*seats: Seat, free_bytes: float = PLENTY, **limits: Any) -> Plan:
    return plan(seats, FleetLimits(**limits), free_bytes=free_bytes, now=NOW)


def test_nothing_is_done_for_nobody() -> None:
    assert decide(ready("a"), Seat(name="b", stage=Stage.UNLOADED), max_loaded=1) == Plan()


def test_what_is_wanted_is_loaded_where_there_is_room() -> None:
    assert decide(ready("a"), wanted("b"), wanted("c")) == Plan(load=("b", "c"))
    assert decide(ready("a"), wanted("b"), max_loaded=2) == Plan(load=("b",))


def test_who_came_first_is_loaded_first() -> None:
    assert decide(wanted("late", since=901), wanted("early", since=900), max_loaded=1).load == ("early",)


def test_the_least_recently_used_leaves() -> None:
    seats = [ready("new", last_used=9), ready("old", last_used=3), wanted("c")]
    assert decide(*seats, max_loaded=2) == Plan(unload=("old",))


@pytest.mark.parametrize("kept", [{"pinned": True}, {"leases": 1}])
def test_pinned_and_busy_ones_stay(kept: dict[str, Any]) -> None:
    seats = [ready("kept", last_used=1, **kept), ready("other", last_used=2), wanted("c")]
    assert decide(*seats, max_loaded=2).unload == ("other",)


def test_as_many_leave_as_the_memory_takes() -> None:
    seats = [ready(name, last_used=i, size_bytes=10) for i, name in enumerate("abc")]
    assert decide(*seats, wanted("big", size_bytes=25), free_bytes=10).unload == ("a", "b")
    assert decide(*seats, wanted("small", size_bytes=10), free_bytes=10) == Plan(load=("small",))


def test_what_is_being_loaded_has_its_memory_already() -> None:
    loading = Seat(name="a", stage=Stage.LOADING, size_bytes=8)
    assert decide(loading, wanted("b", size_bytes=5), free_bytes=10) == Plan()


def test_one_that_would_be_alone_is_tried_whatever_it_seems_to_need() -> None:
    assert decide(wanted("huge", size_bytes=100), free_bytes=1) == Plan(load=("huge",))
    assert decide(ready("a", size_bytes=5), wanted("huge", size_bytes=100), free_bytes=1).unload == ("a",)


def test_what_leaves_already_is_waited_for() -> None:
    seats = [Seat(name="a", stage=Stage.UNLOADING), ready("b"), wanted("c")]
    assert decide(*seats, max_loaded=2) == Plan()


def test_a_busy_model_takes_no_more_once_its_turn_is_over() -> None:
    busy = ready("busy", leases=2, loaded_at=NOW - 4)
    assert decide(busy, wanted("b"), max_loaded=1, turn_s=5) == Plan()
    assert decide(busy, wanted("b"), max_loaded=1, turn_s=4) == Plan(reserved=frozenset({"busy"}))


def test_of_busy_ones_the_one_with_the_longest_turn_goes() -> None:
    seats = [ready("a", leases=1, loaded_at=500), ready("b", leases=1, loaded_at=400), wanted("c")]
    assert decide(*seats, max_loaded=2).reserved == {"b"}


def test_an_idle_one_is_kept_for_a_model_that_also_needs_the_place_of_a_busy_one() -> None:
    seats = [ready("idle", size_bytes=5), ready("busy", leases=1, size_bytes=5), wanted("big", size_bytes=10)]
    assert decide(*seats, free_bytes=0) == Plan(reserved=frozenset({"idle", "busy"}))


def test_nobody_overtakes_one_that_waits_for_room() -> None:
    seats = [
        ready("busy", leases=1, size_bytes=9),
        wanted("big", 900, size_bytes=9),
        wanted("small", 901, size_bytes=1),
    ]
    assert decide(*seats, free_bytes=5).load == ()


def test_beside_pinned_ones_there_may_be_no_hope() -> None:
    pinned = ready("pinned", pinned=True, size_bytes=9)
    assert decide(pinned, wanted("b"), max_loaded=1) == Plan(hopeless=frozenset({"b"}))
    decided = decide(pinned, wanted("big", 900, size_bytes=9), wanted("small", 901, size_bytes=1), free_bytes=5)
    assert (decided.hopeless, decided.load) == (frozenset({"big"}), ("small",))


def test_one_that_is_being_loaded_is_hope() -> None:
    assert decide(Seat(name="a", stage=Stage.LOADING), wanted("b"), max_loaded=1) == Plan()


def test_a_model_of_no_known_size_fits_any_memory() -> None:
    taken = Seat(name="a", stage=Stage.LOADING, pinned=True, size_bytes=9)
    assert decide(taken, wanted("far"), free_bytes=8) == Plan(load=("far",))


def test_while_one_is_being_loaded_nothing_goes_and_nobody_is_refused_for_memory() -> None:
    loading = Seat(name="a", stage=Stage.LOADING, pinned=True, size_bytes=9)
    idle = ready("idle", size_bytes=4)
    assert decide(loading, wanted("b", size_bytes=3), free_bytes=8) == Plan()
    assert decide(loading, idle, wanted("b", size_bytes=3), free_bytes=8) == Plan()
    assert decide(loading, idle, wanted("b", size_bytes=3), free_bytes=8, max_loaded=2) == Plan(unload=("idle",))
    assert decide(loading, wanted("b", size_bytes=3), free_bytes=8, max_loaded=1).hopeless == {"b"}


def test_idle_ones_leave_after_their_time() -> None:
    seats = [
        ready("old", last_used=NOW - 60),
        ready("fresh", last_used=NOW - 59),
        ready("pinned", last_used=0, pinned=True),
        ready("busy", last_used=0, leases=1),
        ready("wanted", last_used=0, wanted_since=NOW),
    ]
    assert decide(*seats, idle_s=60).unload == ("old",)
    assert decide(*seats).unload == ()


def test_fits() -> None:
    one = Seat(name="b", stage=Stage.UNLOADED, size_bytes=5)
    assert fits(one, [ready("a")], FleetLimits(max_loaded=2), free_bytes=5)
    assert not fits(one, [ready("a")], FleetLimits(max_loaded=1), free_bytes=5)
    assert not fits(one, [ready("a")], FleetLimits(), free_bytes=4)
    assert fits(one, [], FleetLimits(), free_bytes=0)


SEATS = st.builds(
    lambda **fields: fields,
    stage=st.sampled_from(Stage),
    leases=st.integers(0, 2),
    pinned=st.booleans(),
    size_bytes=st.integers(0, 10),
    last_used=st.floats(0, NOW),
    loaded_at=st.floats(0, NOW),
    wanted_since=st.none() | st.floats(0, NOW),
)


@given(
    fields=st.lists(SEATS, max_size=6),
    max_loaded=st.none() | st.integers(1, 4),
    idle_s=st.none() | st.floats(0, 100),
    free_bytes=st.integers(0, 30),
)
def test_promises(fields: list[dict[str, Any]], max_loaded: int | None, idle_s: float | None, free_bytes: int) -> None:
    seats = {f"m{i}": Seat(name=f"m{i}", **given) for i, given in enumerate(fields)}
    decided = plan(
        list(seats.values()), FleetLimits(max_loaded=max_loaded, idle_s=idle_s), free_bytes=free_bytes, now=NOW
    )
    held = sum(seat.holds for seat in seats.values())
    if decided.load and max_loaded is not None:
        assert held + len(decided.load) <= max_loaded
    for name in decided.unload:
        assert seats[name].stage is Stage.READY
        assert not seats[name].pinned
        assert not seats[name].leases
    assert all(not seats[name].pinned and seats[name].stage is Stage.READY for name in decided.reserved)
    for name in (*decided.load, *decided.hopeless):
        assert seats[name].wanted_since is not None
        assert not seats[name].holds
    if beside := [size for n in decided.load[0 if held else 1 :] if (size := seats[n].size_bytes)]:
        loading = sum(seat.size_bytes for seat in seats.values() if seat.stage is Stage.LOADING)
        assert sum(beside) + loading <= free_bytes
    assert len({*decided.load, *decided.unload, *decided.hopeless}) == sum(
        map(len, (decided.load, decided.unload, decided.hopeless))
    )

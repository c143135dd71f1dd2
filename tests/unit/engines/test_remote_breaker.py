"""The circuit breaker and the choice among upstreams, on a clock of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from drivetrain.core.errors import EngineFailed, InvalidSetting, LoadFailed, NotReady
from drivetrain.engines.remote import blocking
from drivetrain.engines.remote.address import Key, Reference
from drivetrain.engines.remote.breaker import (
    FIRST_PAUSE_S,
    IN_A_ROW,
    LONGEST_PAUSE_S,
    MIN_OUTCOMES,
    WINDOW,
    Breaker,
    BreakerState,
)
from drivetrain.engines.remote.dialects.base import Dialect, UpstreamFacts, UpstreamKind
from drivetrain.engines.remote.dialects.chat import Habits, TextDialect
from drivetrain.engines.remote.errors import Broken, Refused
from drivetrain.engines.remote.pool import Pool, Upstream, in_common
from drivetrain.engines.remote.probe import Prober
from drivetrain.engines.remote.wire import Timeouts
from drivetrain.http.address import Address


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def opened() -> tuple[Breaker, Clock]:
    clock = Clock()
    breaker = Breaker(clock)
    for _ in range(IN_A_ROW):
        breaker.fail(breaker.begin())
    return breaker, clock


def half_open() -> Breaker:
    breaker, clock = opened()
    clock.now = FIRST_PAUSE_S
    breaker.probed(well=True)
    return breaker


def test_failures_in_a_row_open_it() -> None:
    breaker, _ = opened()
    assert breaker.state is BreakerState.OPEN
    assert not breaker.lets_pass
    assert not breaker.probe_is_due


def test_a_success_between_them_does_not() -> None:
    breaker = Breaker(Clock())
    for _ in range(MIN_OUTCOMES - 2):
        for end in (breaker.fail, breaker.succeed, breaker.succeed):
            end(breaker.begin())
    assert breaker.state is BreakerState.CLOSED


def test_an_outlier_is_ejected_although_some_succeed() -> None:
    breaker = Breaker(Clock())
    for i in range(MIN_OUTCOMES):
        assert breaker.state is BreakerState.CLOSED
        (breaker.succeed if i % 2 else breaker.fail)(breaker.begin())
    breaker.fail(breaker.begin())
    assert breaker.state is BreakerState.OPEN


def test_a_probe_half_opens_it_and_one_request_closes_it() -> None:
    breaker, clock = opened()
    clock.now = FIRST_PAUSE_S
    assert breaker.probe_is_due
    breaker.probed(well=True)
    seen = [(breaker.state, breaker.lets_pass)]
    began = breaker.begin()
    seen.append((breaker.state, breaker.lets_pass))
    breaker.succeed(began)
    seen.append((breaker.state, breaker.lets_pass))
    assert seen == [(BreakerState.HALF_OPEN, True), (BreakerState.HALF_OPEN, False), (BreakerState.CLOSED, True)], (
        "one request at a time"
    )


def test_a_trial_that_is_cancelled_leaves_room_for_another() -> None:
    breaker = half_open()
    breaker.leave(breaker.begin())
    assert breaker.state is BreakerState.HALF_OPEN
    assert breaker.lets_pass


@pytest.mark.parametrize("end", [Breaker.succeed, Breaker.fail, Breaker.leave])
def test_how_old_requests_end_counts_for_nothing(end: Callable[[Breaker, int], None]) -> None:
    """They began before the opening, and end while it is open, on trial, and closed again."""
    clock = Clock()
    breaker = Breaker(clock)
    old = [breaker.begin() for _ in range(WINDOW)]
    for _ in range(IN_A_ROW):
        breaker.fail(old.pop())
    end(breaker, old.pop())
    assert not breaker.lets_pass
    clock.now = FIRST_PAUSE_S
    assert breaker.probe_is_due
    breaker.probed(well=True)
    trial = breaker.begin()
    for _ in range(IN_A_ROW):
        end(breaker, old.pop())
        assert (breaker.state, breaker.lets_pass) == (BreakerState.HALF_OPEN, False), "the trial is still under way"
    breaker.succeed(trial)
    for began in old:
        end(breaker, began)
    assert (breaker.state, breaker.openings) == (BreakerState.CLOSED, 1)
    passes = []
    for _ in range(IN_A_ROW):
        breaker.fail(breaker.begin())
        passes.append(breaker.lets_pass)
    assert passes == [True] * (IN_A_ROW - 1) + [False], "nor were they counted for later"


def test_a_trial_that_fails_opens_it_for_longer() -> None:
    breaker, clock = opened()
    clock.now = FIRST_PAUSE_S
    breaker.probed(well=True)
    breaker.fail(breaker.begin())
    assert breaker.state is BreakerState.OPEN
    clock.now += FIRST_PAUSE_S
    assert not breaker.probe_is_due
    clock.now += FIRST_PAUSE_S
    assert breaker.probe_is_due


def test_pauses_between_probes_grow_to_a_limit() -> None:
    breaker, clock = opened()
    for _ in range(20):
        clock.now += LONGEST_PAUSE_S
        assert breaker.probe_is_due
        breaker.probed(well=False)
    assert breaker.state is BreakerState.OPEN


FACTS = UpstreamFacts(
    kind=UpstreamKind.OTHER, tokens=False, parameters=frozenset({"n", "top_p"}), max_concurrency=4, context_length=9
)
PROBER = Prober(Key(), "m", Timeouts())


def pool_of(*capacities: int) -> Pool:
    addresses = [Address.parse(f"http://127.0.0.1:{i + 1}") for i in range(len(capacities))]
    pool = Pool(addresses, PROBER)
    for upstream, capacity in zip(pool.upstreams, capacities, strict=True):
        facts = UpstreamFacts(kind=UpstreamKind.OTHER, tokens=False, parameters=frozenset(), max_concurrency=capacity)
        upstream.dialect = TextDialect(upstream.address, "m", facts, Habits())
    return pool


async def test_the_least_loaded_is_taken_by_its_share() -> None:
    pool = pool_of(1, 3)
    taken = []
    for _ in range(8):
        upstream = pool.take()
        upstream.begin()
        taken.append(upstream)
    assert [taken.count(upstream) for upstream in pool.upstreams] == [2, 6]


async def test_equals_take_turns() -> None:
    pool = pool_of(4, 4)
    for _ in range(6):
        upstream = pool.take()
        upstream.end(upstream.begin(), None)
    assert [upstream.taken for upstream in pool.upstreams] == [3, 3]


async def test_who_failed_this_request_is_asked_last() -> None:
    pool = pool_of(4, 4)
    first, second = pool.upstreams
    assert pool.take([first]) is second
    assert pool.take([first, second]) in pool.upstreams


def fail(upstream: Upstream, error: Exception, times: int = IN_A_ROW) -> None:
    for _ in range(times):
        upstream.end(upstream.begin(), error)


async def test_an_open_one_is_left_out_and_health_follows() -> None:
    pool = pool_of(4, 4)
    first, second = pool.upstreams
    fail(first, Broken("x"))
    alive = [pool.alive]
    assert {pool.take() for _ in range(4)} == {second}
    fail(second, ConnectionRefusedError())
    assert [*alive, pool.alive] == [True, False]
    with pytest.raises(NotReady):
        pool.take()


@pytest.mark.parametrize("error", [Refused(400), Refused(429), Refused(503), ValueError()])
async def test_what_is_not_its_fault_opens_nothing(error: Exception) -> None:
    pool = pool_of(4)
    fail(pool.upstreams[0], error, times=20)
    assert pool.alive


@pytest.mark.parametrize(("status", "state"), [(500, BreakerState.CLOSED), (502, BreakerState.OPEN)])
async def test_short_questions_that_may_fail_by_their_own_fault_are_no_row(
    status: int, state: BreakerState, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **more: object) -> None:
        raise Refused(status)

    monkeypatch.setattr(blocking, "ask", refuse)
    pool = pool_of(4, 4)
    for _ in range(IN_A_ROW):
        with pytest.raises(EngineFailed):
            blocking.Asker(pool.askable, Key(), Timeouts())("/tokenize", {})
    await asyncio.sleep(0)
    assert [upstream.breaker.state for upstream in pool.upstreams] == [state, state]


async def test_a_short_question_is_of_the_time_when_it_was_asked() -> None:
    pool = pool_of(4)
    (upstream,) = pool.upstreams
    asked = [suspect for _ in range(IN_A_ROW) for _, suspect in pool.askable()]
    fail(upstream, Broken("x"))
    upstream.breaker.probed(well=True)
    for suspect in asked:
        suspect(Broken("x"))
    await asyncio.sleep(0)
    assert (upstream.breaker.state, upstream.breaker.openings) == (BreakerState.HALF_OPEN, 1)
    ((_, suspect),) = pool.askable()
    suspect(Broken("x"))
    await asyncio.sleep(0)
    assert (upstream.breaker.state, upstream.breaker.openings) == (BreakerState.OPEN, 2)


async def test_the_first_event_of_an_old_request_ends_no_trial() -> None:
    (upstream,) = pool_of(4).upstreams
    old = upstream.begin()
    fail(upstream, Broken("x"))
    upstream.breaker.probed(well=True)
    trial = upstream.begin()
    states = []
    for began in (old, trial):
        upstream.answered(began)
        states.append(upstream.breaker.state)
    assert states == [BreakerState.HALF_OPEN, BreakerState.CLOSED]


@dataclass(frozen=True, slots=True)
class Odd(Prober):
    """Knows no network: a port is well, or in `hangs`, or in `raises`."""

    hangs: set[int] = field(default_factory=set)
    raises: dict[int, Exception] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)

    async def probe(self, address: Address) -> Dialect:
        self.asked.append(address.port)
        try:
            if address.port in self.hangs:
                await asyncio.Event().wait()
        finally:
            self.left.append(address.port)
        if address.port in self.raises:
            raise self.raises[address.port]
        return TextDialect(address, "m", FACTS, Habits())


@asynccontextmanager
async def left_out(prober: Odd) -> AsyncIterator[tuple[Pool, Clock]]:
    """Two upstreams, both out, and a clock that says when they are probed."""
    pool, clock = Pool([Address.parse(f"http://127.0.0.1:{i}") for i in (1, 2)], prober), Clock()
    await pool.open()
    for upstream in pool.upstreams:
        upstream.breaker = Breaker(clock)
        fail(upstream, Broken("x"))
    prober.asked.clear()
    prober.left.clear()
    try:
        yield pool, clock
    finally:
        await pool.close()


async def until(state: BreakerState, upstream: Upstream) -> None:
    async with asyncio.timeout(5):
        while upstream.breaker.state is not state:
            await asyncio.sleep(0.01)


async def test_one_that_hangs_keeps_no_other_out() -> None:
    prober = Odd(Key(), "m", Timeouts())
    async with left_out(prober) as (pool, clock):
        hung, other = pool.upstreams
        prober.hangs.add(1)
        prober.raises[2] = ConnectionRefusedError()
        clock.now += FIRST_PAUSE_S
        async with asyncio.timeout(5):
            while sorted(prober.asked) != [1, 2]:
                await asyncio.sleep(0.01)
        del prober.raises[2]
        clock.now += 2 * FIRST_PAUSE_S
        await until(BreakerState.HALF_OPEN, other)
        assert hung.breaker.state is BreakerState.OPEN
        assert sorted(prober.asked) == [1, 2, 2], "nor is it asked twice at a time"
        assert prober.left == [2, 2]
        async with asyncio.timeout(5):
            await pool.close()
        assert prober.left == [2, 2, 1], "no probe outlives its pool"


async def test_a_probe_that_fails_oddly_is_not_the_last_one(caplog: pytest.LogCaptureFixture) -> None:
    prober = Odd(Key(), "m", Timeouts())
    async with left_out(prober) as (pool, clock):
        odd, other = pool.upstreams
        prober.raises[1] = AttributeError("'list' object has no attribute 'get'")
        clock.now += FIRST_PAUSE_S
        await until(BreakerState.HALF_OPEN, other)
        async with asyncio.timeout(5):
            while "said what is not understood" not in caplog.text:
                await asyncio.sleep(0.01)
        assert "127.0.0.1:1 was probed" in caplog.text
        assert odd.breaker.state is BreakerState.OPEN
        assert not odd.breaker.probe_is_due, "as after any other failure, the pause is longer"
        prober.raises.clear()
        clock.now += 2 * FIRST_PAUSE_S
        await until(BreakerState.HALF_OPEN, odd)


def test_what_they_have_in_common_is_declared() -> None:
    other = UpstreamFacts(
        kind=UpstreamKind.OTHER, tokens=False, parameters=frozenset({"n", "seed"}), max_concurrency=2, context_length=5
    )
    both = in_common([FACTS, other])
    assert both.parameters == {"n"}
    assert (both.context_length, both.max_concurrency) == (5, 6)
    with pytest.raises(LoadFailed):
        in_common([FACTS, UpstreamFacts(kind=UpstreamKind.LLAMACPP, tokens=True, parameters=frozenset(), vocab_size=7)])


def test_references() -> None:
    made = Reference.parse("http://a/v1/, https://b:8443/x#org/m")
    assert [str(address) for address in made.addresses] == ["http://a/v1", "https://b:8443/x"]
    assert made.model == "org/m"
    assert Address.parse("http://[::1]:80").authority == "[::1]"
    assert Address.parse("http://a").path == "/v1"
    for bad in ("http://", "http://a:99999", "http://a/v1?x=1", "http://a/\x00", "http://a/ü"):
        with pytest.raises(InvalidSetting):
            Reference.parse(bad)


def test_a_password_in_a_url_is_refused_and_not_repeated() -> None:
    for bad in ("http://me:secret@a/v1", "http://me:secret@a:port/v1"):
        with pytest.raises(InvalidSetting) as caught:
            Reference.parse(bad)
        assert "secret" not in caught.value.message


def test_a_key_is_not_shown() -> None:
    key = Key.of_environment({"DRIVETRAIN_REMOTE_API_KEY": " sk-1 "})
    assert key.headers == {"authorization": "Bearer sk-1"}
    assert "sk-1" not in repr(key)
    assert key.hide("no sk-1 here") == "no … here"
    assert Key().hide("as it is") == "as it is"
    assert not Key.of_environment({}).headers
    with pytest.raises(InvalidSetting):
        Key.of_environment({"DRIVETRAIN_REMOTE_API_KEY": "a\r\nb: c"})

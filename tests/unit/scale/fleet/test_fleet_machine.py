"""A fleet under any order of events: requests that come, leave and give up, loads and engines that fail, time."""

from __future__ import annotations

import asyncio
from typing import cast

from fleet_rig import Book, StubWorker, settle
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from drivetrain.core.errors import DrivetrainError, InvalidRequest, LoadFailed, NotReady, OutOfMemory
from drivetrain.core.status import State
from drivetrain.core.worker import WorkerPort
from drivetrain.scale.fleet.fleet import Fleet
from drivetrain.scale.fleet.member import Lease
from drivetrain.scale.fleet.policy import Stage

NAMES = st.sampled_from("abcd")
SIZES = {"a": 4, "b": 4, "c": 7, "d": 1}
ROOM_WAIT_S = 60.0
HELD = {Stage.LOADING, Stage.READY, Stage.UNLOADING}


class FleetMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.held: list[tuple[str, Lease]] = []
        self.waiting: list[tuple[str, Lease, asyncio.Task[WorkerPort]]] = []
        self.limits_s = 600.0

    @initialize(max_loaded=st.none() | st.integers(1, 3), pinned=st.booleans(), free=st.sampled_from([8, 12, 1000]))
    def begin(self, max_loaded: int | None, pinned: bool, free: int) -> None:
        self.book = Book(by_hand=True)
        self.total = free
        offers = [
            self.book.offer(name, size_bytes=lambda n=name: SIZES[n], pinned=pinned and name == "a", max_waiting=3)
            for name in "abcd"
        ]
        self.max_loaded = max_loaded
        self.fleet: Fleet = self.book.fleet(
            *offers, max_loaded=max_loaded, idle_s=300, turn_s=5, room_wait_s=ROOM_WAIT_S
        )
        self.fleet.placement.started = True
        self.turn()

    def turn(self) -> None:
        """Let the loop run dry, with the memory that is taken told as it would be."""
        for _ in range(3):
            self.book.free_bytes = self.total - sum(SIZES[n] * count for n, count in self.book.alive.items())
            self.loop.run_until_complete(self._think())
        done = [entry for entry in self.waiting if entry[2].done()]
        self.waiting = [entry for entry in self.waiting if not entry[2].done()]
        for name, lease, task in done:
            if task.cancelled() or task.exception() is not None:
                assert task.cancelled() or isinstance(task.exception(), DrivetrainError)
                lease.release()
            else:
                self.held.append((name, lease))

    async def _think(self) -> None:
        self.fleet.placement.decide()
        await settle()

    @rule(name=NAMES)
    def ask(self, name: str) -> None:
        async def go() -> None:
            lease = self.fleet.lease(name)
            if lease.worker is not None:
                self.held.append((name, lease))
            else:
                self.waiting.append((name, lease, asyncio.ensure_future(lease.wait())))

        self.loop.run_until_complete(go())
        self.turn()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        _, lease = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.loop.run_until_complete(self._release(lease))
        self.turn()

    async def _release(self, lease: Lease) -> None:
        lease.release()
        lease.release()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        self.waiting[data.draw(st.integers(0, len(self.waiting) - 1))][2].cancel()
        self.turn()

    @precondition(lambda self: self.book.opening)
    @rule(data=st.data(), fails=st.none() | st.sampled_from([LoadFailed, OutOfMemory]))
    def load_ends(self, data: st.DataObject, fails: type[Exception] | None) -> None:
        name = data.draw(st.sampled_from(sorted(self.book.opening)))
        if fails is not None:
            self.book.failures[name] = [fails("it is broken")]
        self.book.opening[name].set_result(None)
        self.turn()

    @precondition(lambda self: self.book.stopping)
    @rule(data=st.data())
    def unload_ends(self, data: st.DataObject) -> None:
        self.book.stopping[data.draw(st.sampled_from(sorted(self.book.stopping)))].set_result(None)
        self.turn()

    @precondition(lambda self: any(True for _ in self.fleet))
    @rule(data=st.data())
    def engine_fails(self, data: st.DataObject) -> None:
        """It will not come back, whether somebody uses it or not."""
        worker = data.draw(st.sampled_from([worker for _, worker in self.fleet]))
        cast("StubWorker", worker).state = State.FAILED
        self.turn()

    @rule(seconds=st.sampled_from([1.0, 6.0, 400.0]))
    def time_goes_by(self, seconds: float) -> None:
        self.book.now += seconds
        self.turn()

    @rule(name=NAMES, verbs=st.lists(st.sampled_from(["load", "unload", "pin", "unpin"]), min_size=1, max_size=3))
    def administer(self, name: str, verbs: list[str]) -> None:
        async def go() -> None:
            for verb in verbs:  # nothing else happens between them
                try:
                    getattr(self.fleet, verb)(name)
                except InvalidRequest:
                    member = self.fleet.member(name)
                    assert verb == "pin" or member.pinned or member.leases or member.line

        self.loop.run_until_complete(go())
        self.turn()

    @invariant()
    def never_more_than_allowed(self) -> None:
        if hasattr(self, "fleet") and self.max_loaded is not None:
            assert sum(member.stage in HELD for member in self.fleet.members) <= self.max_loaded
            assert self.book.alive.total() <= self.max_loaded

    @invariant()
    def what_moves_is_being_moved(self) -> None:
        if hasattr(self, "fleet") and not self.book.opening and not self.book.stopping:
            assert all(member.stage not in {Stage.LOADING, Stage.UNLOADING} for member in self.fleet.members)

    @invariant()
    def what_is_not_there_holds_nothing(self) -> None:
        if hasattr(self, "fleet"):
            for member in self.fleet.members:
                assert self.book.alive[member.name] <= (member.stage in HELD)

    @invariant()
    def one_that_failed_stays_only_as_long_as_it_is_in_use(self) -> None:
        if hasattr(self, "fleet"):
            assert not [member.name for member in self.fleet.members if member.broken and not member.leases]

    @invariant()
    def one_in_use_is_there(self) -> None:
        for name, lease in self.held:
            member = self.fleet.member(name)
            assert member.stage is Stage.READY
            assert member.worker is lease.worker
        if hasattr(self, "fleet"):
            for member in self.fleet.members:
                assert member.leases == sum(name == member.name for name, _ in self.held)
                assert member.num_waiting <= 3

    @invariant()
    def nobody_waits_too_long(self) -> None:
        """But for a load, which its own deadline bounds."""
        for name, lease, _ in self.waiting:
            late = self.book.now - lease.since >= ROOM_WAIT_S
            assert not late or self.fleet.member(name).stage is Stage.LOADING

    def teardown(self) -> None:
        """When all requests end, all who wait are served or refused, and nothing is left at the end."""
        if hasattr(self, "fleet"):
            self.finish()
        self.loop.close()

    def finish(self) -> None:
        for _ in range(60):
            for _, lease in self.held:
                self.loop.run_until_complete(self._release(lease))
            self.held.clear()
            for gates in (self.book.opening, self.book.stopping):
                for gate in list(gates.values()):
                    gate.set_result(None)
            self.book.now += 3
            self.turn()
            if not self.waiting:
                break
        assert not self.waiting, "somebody waits for ever"
        for _, lease in self.held:
            self.loop.run_until_complete(self._release(lease))
        self.book.by_hand = False
        for gates in (self.book.opening, self.book.stopping):
            for gate in list(gates.values()):
                gate.set_result(None)
        self.loop.run_until_complete(self.fleet.stop())
        assert not self.book.alive.total()
        assert not asyncio.all_tasks(self.loop)
        assert self.fleet.placement._timer is None

        async def late() -> None:
            lease = self.fleet.lease("a")
            try:
                await lease.wait()
            except NotReady:
                return
            raise AssertionError("a fleet that has stopped gives nothing")

        self.loop.run_until_complete(late())


TestFleetMachine = FleetMachine.TestCase
TestFleetMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)

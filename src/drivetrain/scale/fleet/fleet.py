"""The fleet: finds models by name, leases them, and does what the policy says. The server asks it for its models."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from drivetrain.core.errors import DrivetrainError, InvalidRequest, InvalidSetting, ModelNotFound, NotLoaded, NotReady
from drivetrain.core.worker import WorkerPort
from drivetrain.scale.fleet.member import Lease, Member
from drivetrain.scale.fleet.moves import Moves
from drivetrain.scale.fleet.offer import Offer
from drivetrain.scale.fleet.policy import Limits, Seat, fits, plan
from drivetrain.scale.fleet.stage import Stage

LOOK_AGAIN_S = 0.25
"""While somebody waits for room: memory may become free, and turns end, without anybody telling."""

WATCH_S = 1.0
"""How often it is looked whether a worker has given up: none says so."""

_log = logging.getLogger("drivetrain.fleet")


class Fleet:
    """`start` loads what there is room for; `drain` and `stop` end it. All methods belong to one event loop.

    `settled` is called after each load and unload.
    """

    def __init__(
        self,
        offers: Sequence[Offer],
        limits: Limits | None = None,
        *,
        free_bytes: Callable[[], float] = lambda: float("inf"),
        settled: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits or Limits()
        self.created = int(time.time())
        self._members = [Member(offer, pinned=offer.pinned) for offer in offers]
        self._desks = {member.name: _Desk(self, member) for member in self._members}
        self._names = _by_name(self._members)
        self._free_bytes = free_bytes
        self._clock = clock
        self._moves = Moves(clock, settled, self.think)
        self._timer: asyncio.TimerHandle | None = None
        self._watching: asyncio.TimerHandle | None = None
        self._up = False
        self._replaced = False
        self._closed = ""
        if self.limits.max_loaded is not None and sum(offer.pinned for offer in offers) > self.limits.max_loaded:
            raise InvalidSetting("more models are pinned than may be loaded; raise max_loaded", param="max_loaded")

    @classmethod
    def of(cls, workers: Mapping[str, WorkerPort], *, replaced: bool = False) -> Fleet:
        """Of workers that run already, and that somebody else will stop: always loaded, nothing to wait for.

        `replaced`: somebody else puts a new one in the place of one that has failed, too.
        """
        offers = [Offer(name=n, open=_opened_elsewhere, pinned=True, stats=w.stats) for n, w in workers.items()]
        fleet = cls(offers)
        for member in fleet._members:
            member.stage, member.worker = Stage.READY, workers[member.name]
            member.loaded_at = member.last_used = fleet._clock()
        fleet._up, fleet._replaced = True, replaced
        return fleet

    # What there is

    @property
    def members(self) -> Sequence[Member]:
        return self._members

    def __iter__(self) -> Iterator[tuple[str, WorkerPort]]:
        """Those that are loaded."""
        return iter([(member.name, member.worker) for member in self._members if member.worker is not None])

    def member(self, name: str | None) -> Member:
        """By its name or an alias; where there is only one, it need not be named. Raises `ModelNotFound`."""
        if name is None:
            if len(self._members) > 1:
                raise ModelNotFound("model is missing; this server has several, so name one", param="model")
            return self._members[0]
        member = self._names.get(name)
        if member is None:
            shown = name if len(name) <= 100 else name[:97] + "..."
            raise ModelNotFound(f"there is no model {shown!r} here; see /v1/models", param="model")
        return member

    def find(self, name: str | None) -> WorkerPort:
        """One that is loaded now, for a look at it; who uses it takes a lease. Raises `NotReady` where it is not."""
        member = self.member(name)
        if member.worker is None:
            raise NotReady(f"{member.name} is not loaded", retry_after_s=1.0)
        return member.worker

    @property
    def ready(self) -> bool:
        """Whether the start is over and every model that is loaded or should always be serves."""
        return self._up and not self._closed and all(member.serves for member in self._members if member.should_serve)

    @property
    def lost(self) -> bool:
        """Whether one has failed that only a new process starts again."""
        return not self._replaced and any(member.lost for member in self._members)

    def report(self) -> list[dict[str, Any]]:
        now = self._clock()
        return [member.report(now) for member in self._members]

    # Who uses it

    def lease(self, name: str | None, timeout_s: float | None = None) -> Lease:
        """`async with` it, or see `Lease`. Raises `ModelNotFound`, and `InvalidRequest` for a time that cannot be."""
        member = self.member(name)
        at_once = member.worker is not None and not (member.reserved or member.broken or self._closed)
        limit_s = 0.0 if at_once else member.wait_limit_s(timeout_s)
        lease = Lease(self._desks[member.name], member.name, limit_s, since=self._clock())
        if at_once:
            self._grant(member, lease)
        return lease

    def _grant(self, member: Member, lease: Lease) -> None:
        assert member.worker is not None
        member.leases += 1
        lease.grant(member.worker)

    def join(self, member: Member, lease: Lease) -> None:
        if self._closed:
            raise NotReady(self._closed, retry_after_s=5.0)
        if self._clock() < member.retry_at:
            raise self._not_loaded(member)
        if not member.line:
            member.size_bytes = member.offer.size_bytes()
        member.join(lease)
        self.think()

    def leave(self, member: Member, lease: Lease) -> None:
        if lease.unserved is not None:
            member.unserved(lease.unserved)
        if lease.worker is None:
            with contextlib.suppress(ValueError):  # refused on the way, or it never stood in line
                member.line.remove(lease)
        else:
            member.leases -= 1
            member.last_used = self._clock()
            if member.leases:
                return
        self.think()

    # What an administrator says

    def load(self, name: str) -> Member:
        """As soon as there is room, and also shortly after a failure. `report` says how far it is."""
        member = self.member(name)
        if member.worker is None and member.stage is not Stage.LOADING and not self._closed:
            member.size_bytes = member.offer.size_bytes()
            member.ask(self._clock())
            self.think()
        return member

    def unload(self, name: str) -> Member:
        """Also one that is being loaded. Raises `InvalidRequest` for one that is pinned or that somebody needs."""
        member = self.member(name)
        self._check_own(member, "unloaded")
        if member.pinned:
            raise InvalidRequest(f"{member.name} is pinned; unpin it first", param="model")
        if member.leases or member.line:
            num = member.leases + len(member.line)
            raise InvalidRequest(
                f"{num} requests are using {member.name}; try again when they have finished", param="model"
            )
        if member.stage is Stage.LOADING:
            self._moves.give_up(member)
        elif member.asked_at is not None:
            member.withdraw()
            self.think()
        elif member.stage is Stage.READY:
            self._moves.unload(member)
        return member

    def pin(self, name: str) -> Member:
        """Load it, and keep it loaded. Raises `InvalidRequest` where all places are pinned already."""
        member, most = self.member(name), self.limits.max_loaded
        if most is not None and sum(m.pinned for m in self._members if m is not member) >= most:
            raise InvalidRequest(f"{most} models are pinned, and no more may be loaded; unpin one first", param="model")
        member.pinned = True
        self.think()
        return member

    def unpin(self, name: str) -> Member:
        """Raises `InvalidRequest` for a worker that was opened elsewhere."""
        member = self.member(name)
        self._check_own(member, "unpinned")
        member.pinned = False
        self.think()
        return member

    def _check_own(self, member: Member, what: str) -> None:
        if member.borrowed:
            instead = "" if self._replaced else "; serve it with --idle-s or --max-loaded to change that"
            raise InvalidRequest(
                f"{member.name} cannot be {what}: it stays loaded as long as the server runs{instead}", param="model"
            )

    # What happens

    def think(self) -> None:
        """Decide anew, and begin what was decided. Called whenever anything has changed."""
        if self._closed or not self._restless():
            return
        now = self._clock()
        self._refuse_late(now)
        for member in self._members:
            if member.broken and not member.leases:  # a new one may do better
                member.gave_up(now)
                _log.warning("%s is unloaded: %s", member.name, member.failure)
                if now < member.retry_at:
                    self._refuse(member, self._not_loaded)
                self._moves.unload(member)
        seats = [member.seat(now, keep_pinned=self._up) for member in self._members]
        waiting = any(seat.wanted_since is not None and not seat.holds for seat in seats)
        decided = plan(seats, self.limits, free_bytes=self._free_bytes() if waiting else float("inf"), now=now)
        goes = decided.unload or any(not self.member(name).reserved for name in decided.reserved)
        if goes and self._refuse_spoilt(seats, now):
            self.think()
            return
        for member in self._members:
            member.reserved = member.name in decided.reserved
            if member.name in decided.hopeless:
                member.withdraw()
                self._refuse(member, lambda m: NotLoaded(f"there is no room for {m.name} next to the pinned models"))
            elif member.stage is Stage.READY and not (
                member.reserved or member.broken or member.name in decided.unload
            ):
                self._serve(member)
        for name in decided.unload:
            self._moves.unload(self.member(name))
        for name in decided.load:
            self._begin_load(self.member(name))
        self._look_again(now)

    def _restless(self) -> bool:
        """Whether there can be anything to decide."""
        if self.limits.idle_s is not None:
            return True
        return any(
            m.line or m.reserved or m.broken or m.asked_at is not None or (m.pinned and not m.worker)
            for m in self._members
        )

    def _begin_load(self, member: Member) -> asyncio.Task[Exception | None]:
        return self._moves.load(member, self._members, lambda: self._loaded(member))

    def _loaded(self, member: Member) -> None:
        """All who waited come first; after that the others get their turn."""
        if member.worker is not None:
            self._serve(member)
        else:
            self._refuse(member, self._not_loaded)

    def _serve(self, member: Member) -> None:
        now = self._clock()
        while member.line:
            lease = member.line.popleft()
            if lease.waits:
                member.stats.load_wait_s.observe(now - lease.since)
            self._grant(member, lease)

    def _refuse(self, member: Member, error: Callable[[Member], DrivetrainError]) -> None:
        while member.line:
            member.line.popleft().refuse(error(member))

    def _refuse_late(self, now: float) -> None:
        """Those that waited too long for a place."""
        for member in self._members:
            while member.line and member.stage is not Stage.LOADING:
                if now - member.line[0].since < self.limits.room_wait_s:
                    break
                error = NotReady(f"all models that could make room for {member.name} are in use", retry_after_s=5.0)
                member.line.popleft().refuse(error)

    def _refuse_spoilt(self, seats: Sequence[Seat], now: float) -> bool:
        """Whether a model that waits for a place could make nothing of it: no other has to go for that one."""
        found = False
        for member, seat in zip(self._members, seats, strict=True):
            if seat.wanted_since is not None and not seat.holds and (why := member.offer.spoilt()):
                _log.warning("%s could not be loaded: %s", member.name, why)
                member.failed(why, now)
                self._refuse(member, self._not_loaded)
                found = True
        return found

    def _not_loaded(self, member: Member) -> NotLoaded:
        retry_s = max(1.0, member.retry_at - self._clock())
        return NotLoaded(f"{member.name} could not be loaded: {member.failure}", retry_after_s=retry_s)

    def _look_again(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = []
        for member in self._members:
            if (member.line or member.asked_at is not None) and member.stage is not Stage.LOADING:
                due.append(now + LOOK_AGAIN_S)
            elif member.pinned and member.stage in {Stage.UNLOADED, Stage.FAILED}:
                due.append(max(member.retry_at, now + LOOK_AGAIN_S))
            elif self.limits.idle_s is not None and member.seat(now).free_to_go:
                due.append(member.last_used + self.limits.idle_s)
        if due:
            wait_s = max(0.01, min(due) - now)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self.think)

    # Its life

    async def start(self) -> None:
        """Load one after another, the pinned ones first, what there is room for. Raises where nothing could be."""
        first: Exception | None = None
        for member in sorted(self._members, key=lambda m: not m.pinned):
            if member.stage is Stage.UNLOADED and not self._closed and self._has_room(member):
                loading = self._begin_load(member)
                await asyncio.wait([loading])
                first = first or (None if loading.cancelled() else loading.result())
        while first is not None and not any(member.worker for member in self._members):
            if not (others := self._moves.loads):  # which requests have begun meanwhile
                raise first
            await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
        self._up = True
        self.think()
        self._watch()

    def _watch(self) -> None:
        if self._closed:
            return
        if any(member.broken and not member.leases for member in self._members):
            self.think()
        self._watching = asyncio.get_running_loop().call_later(WATCH_S, self._watch)

    def _has_room(self, member: Member) -> bool:
        member.size_bytes = member.offer.size_bytes()
        now = self._clock()
        others = [m.seat(now) for m in self._members if m is not member]
        return fits(member.seat(now), others, self.limits, free_bytes=self._free_bytes())

    async def drain(self, grace_s: float | None = None) -> None:
        """Take no more requests, and return when the running ones have ended or were ended."""
        self._close("the server is shutting down; send the request to another one")
        async with asyncio.TaskGroup() as group:
            group.create_task(self._moves.give_up_all())
            for _, worker in self:
                group.create_task(worker.drain(grace_s))

    async def stop(self) -> None:
        """Free every model. Idempotent."""
        self._close("the server is stopped")
        await self._moves.give_up_all()
        await self._moves.stop(self._members)

    def _close(self, why: str) -> None:
        """From now on nobody gets a lease; who waits is refused."""
        self._closed = self._closed or why
        for timer in (self._timer, self._watching):
            if timer is not None:
                timer.cancel()
        self._timer = self._watching = None
        for member in self._members:
            self._refuse(member, lambda m: NotReady(self._closed, retry_after_s=5.0))


class _Desk:
    """The fleet, for the leases of one model."""

    __slots__ = ("_fleet", "_member")

    def __init__(self, fleet: Fleet, member: Member) -> None:
        self._fleet = fleet
        self._member = member

    def join(self, lease: Lease) -> None:
        self._fleet.join(self._member, lease)

    def leave(self, lease: Lease) -> None:
        self._fleet.leave(self._member, lease)


def _by_name(members: Sequence[Member]) -> dict[str, Member]:
    names: dict[str, Member] = {}
    for member in members:
        for name in (member.name, *member.aliases):
            if name in names:
                raise InvalidSetting(
                    f"two models would be called {name!r}; give one of them another name", param="name"
                )
            names[name] = member
    return names


async def _opened_elsewhere(progress: object) -> Any:
    raise AssertionError("a worker that was handed over is never opened")

"""The fleet: finds models by name, leases them, and takes an administrator's orders. The server asks it for models."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from drivetrain.core.errors import InvalidRequest, InvalidSetting, ModelNotFound, NotReady
from drivetrain.core.worker import WorkerPort
from drivetrain.scale.fleet.member import Lease, Member
from drivetrain.scale.fleet.offer import Offer
from drivetrain.scale.fleet.placement import Placement
from drivetrain.scale.fleet.policy import FleetLimits, Stage

WATCH_S = 1.0
"""How often to check whether a worker has given up, since none says so."""


class Fleet:
    """`start` loads what there is room for; `drain` and `stop` end it. Use it on one event loop only.

    `settled` is called after each load and unload. `on_demand`: what is not pinned is loaded by the first request for
    it, and not at the start.
    """

    def __init__(
        self,
        offers: Sequence[Offer],
        limits: FleetLimits | None = None,
        *,
        free_bytes: Callable[[], float] = lambda: float("inf"),
        settled: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        on_demand: bool = False,
    ) -> None:
        self.limits = limits or FleetLimits()
        self.created = int(time.time())
        self._members = [Member(offer, pinned=offer.pinned) for offer in offers]
        self._names = _by_name(self._members)
        self._clock = clock
        self.placement = Placement(self._members, self.limits, free_bytes, settled, clock)
        self._watching: asyncio.TimerHandle | None = None
        self._replaced = False
        self._on_demand = on_demand
        if self.limits.max_loaded is not None and sum(offer.pinned for offer in offers) > self.limits.max_loaded:
            raise InvalidSetting("more models are pinned than may be loaded; raise max_loaded", param="max_loaded")

    @classmethod
    def of(cls, workers: Mapping[str, WorkerPort], *, replaced: bool = False) -> Fleet:
        """A fleet of workers that run already and that somebody else will stop: always loaded, with no waiting.

        `replaced`: somebody else replaces a worker that has failed, too.
        """
        offers = [Offer(name=n, open=_opened_elsewhere, pinned=True, stats=w.stats) for n, w in workers.items()]
        fleet = cls(offers)
        for member in fleet._members:
            member.stage, member.worker = Stage.READY, workers[member.name]
            member.loaded_at = member.last_used = fleet._clock()
        fleet.placement.started, fleet._replaced = True, replaced
        return fleet

    # Models

    @property
    def members(self) -> Sequence[Member]:
        return self._members

    def __iter__(self) -> Iterator[tuple[str, WorkerPort]]:
        """The models that are loaded."""
        return iter([(member.name, member.worker) for member in self._members if member.worker is not None])

    def member(self, name: str | None) -> Member:
        """By its name or an alias; None for the only one. Raises `ModelNotFound`."""
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
        """The worker of a loaded model, to look at; to use it, take a lease. Raises `NotReady` if it is not loaded."""
        member = self.member(name)
        if member.worker is None:
            raise NotReady(f"{member.name} is not loaded", retry_after_s=1.0)
        return member.worker

    @property
    def ready(self) -> bool:
        """Whether the start is over, and every model serves that is loaded or should always be."""
        return (
            self.placement.started
            and not self.placement.closed
            and all(member.serves for member in self._members if member.should_serve)
        )

    @property
    def lost(self) -> bool:
        """Whether a model has failed that only a new process can bring back."""
        return not self._replaced and any(member.lost for member in self._members)

    def report(self) -> list[dict[str, Any]]:
        now = self._clock()
        return [member.report(now) for member in self._members]

    # Leases

    def lease(self, name: str | None, timeout_s: float | None = None) -> Lease:
        """`async with` it, or see `Lease`. Raises `ModelNotFound`, and `InvalidRequest` for a timeout out of range."""
        member = self.member(name)
        at_once = member.worker is not None and not (member.reserved or member.broken or self.placement.closed)
        limit_s = 0.0 if at_once else member.wait_limit_s(timeout_s)
        join, leave = partial(self._join, member), partial(self._leave, member)
        lease = Lease(member.name, limit_s, since=self._clock(), join=join, leave=leave)
        if at_once:
            member.grant(lease)
        return lease

    def _join(self, member: Member, lease: Lease) -> None:
        if self.placement.closed:
            raise NotReady(self.placement.closed, retry_after_s=5.0)
        if self._clock() < member.retry_at:
            raise self.placement.not_loaded(member)
        if not member.line:
            member.size_bytes = member.offer.size_bytes()
        member.join(lease)
        self.placement.decide()

    def _leave(self, member: Member, lease: Lease) -> None:
        if lease.unserved is not None:
            member.unserved(lease.unserved)
        if lease.worker is None:
            with contextlib.suppress(ValueError):  # it was refused, or never stood in line
                member.line.remove(lease)
        else:
            member.leases -= 1
            member.last_used = self._clock()
            if member.leases:
                return
        self.placement.decide()

    # Administration

    def load(self, name: str) -> Member:
        """Load it as soon as there is room, even shortly after a failure. `report` shows the progress."""
        member = self.member(name)
        if member.worker is None and member.stage is not Stage.LOADING and not self.placement.closed:
            member.size_bytes = member.offer.size_bytes()
            member.ask(self._clock())
            self.placement.decide()
        return member

    def unload(self, name: str) -> Member:
        """Unload it, or stop loading it. Raises `InvalidRequest` if it is pinned or in use."""
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
            self.placement.moves.give_up(member)
        elif member.asked_at is not None:
            member.withdraw()
            self.placement.decide()
        elif member.stage is Stage.READY:
            self.placement.moves.unload(member)
        return member

    def pin(self, name: str) -> Member:
        """Load it, and keep it loaded. Raises `InvalidRequest` if all places are pinned already."""
        member, most = self.member(name), self.limits.max_loaded
        if most is not None and sum(m.pinned for m in self._members if m is not member) >= most:
            raise InvalidRequest(f"{most} models are pinned, and no more may be loaded; unpin one first", param="model")
        member.pinned = True
        self.placement.decide()
        return member

    def unpin(self, name: str) -> Member:
        """Raises `InvalidRequest` for a worker that was opened elsewhere."""
        member = self.member(name)
        self._check_own(member, "unpinned")
        member.pinned = False
        self.placement.decide()
        return member

    def _check_own(self, member: Member, what: str) -> None:
        if member.borrowed:
            instead = "" if self._replaced else "; serve it with --idle-s or --max-loaded to change that"
            raise InvalidRequest(
                f"{member.name} cannot be {what}: it stays loaded as long as the server runs{instead}", param="model"
            )

    # Start and end

    async def start(self) -> None:
        """Load what there is room for, one after another, the pinned ones first. Raises if nothing could be loaded."""
        first: Exception | None = None
        for member in sorted(self._members, key=lambda m: not m.pinned):
            if self._on_demand and not member.pinned:
                break
            if member.stage is Stage.UNLOADED and not self.placement.closed and self.placement.has_room(member):
                loading = self.placement.load(member)
                await asyncio.wait([loading])
                first = first or (None if loading.cancelled() else loading.result())
        while first is not None and not any(member.worker for member in self._members):
            if not (others := self.placement.moves.loads):  # begun by requests meanwhile
                raise first
            await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
        self.placement.started = True
        self.placement.decide()
        self._watch()

    def _watch(self) -> None:
        if self.placement.closed:
            return
        if any(member.broken and not member.leases for member in self._members):
            self.placement.decide()
        self._watching = asyncio.get_running_loop().call_later(WATCH_S, self._watch)

    async def drain(self, grace_s: float | None = None) -> None:
        """Accept no more requests, and return when the running ones have ended or were ended."""
        self._close("the server is shutting down; send the request to another one")
        async with asyncio.TaskGroup() as group:
            group.create_task(self.placement.moves.give_up_all())
            for _, worker in self:
                group.create_task(worker.drain(grace_s))

    async def stop(self) -> None:
        """Free every model. Idempotent."""
        self._close("the server is stopped")
        await self.placement.moves.give_up_all()
        await self.placement.moves.stop(self._members)

    def _close(self, why: str) -> None:
        self.placement.close(why)
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None


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

"""Which models are loaded and which make room, as a pure function of the current state.

The tests hold it to these promises: there are never more models than `max_loaded`; nothing that is pinned or in use is
unloaded; those that wait are served in the order in which they came, so that nobody waits for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Stage(StrEnum):
    """Where one model stands. `FAILED` means not loaded, after a failed load or an engine that will not come back."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    READY = "ready"
    UNLOADING = "unloading"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetLimits:
    """`max_loaded` None means as many as fit into memory. Times are in seconds."""

    max_loaded: int | None = None
    idle_s: float | None = None
    """A model that nobody has used for this long is unloaded."""
    turn_s: float = 5.0
    """How long a loaded model keeps taking requests while others wait for its place."""
    room_wait_s: float = 60.0
    """How long a request waits for a place before it is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One model as the policy sees it. `wanted_since` is when the first of those that wait for it came."""

    name: str
    stage: Stage
    leases: int = 0
    pinned: bool = False
    size_bytes: int = 0
    last_used: float = 0.0
    loaded_at: float = 0.0
    wanted_since: float | None = None

    @property
    def holds(self) -> bool:
        """Whether it takes a place and memory."""
        return self.stage in {Stage.LOADING, Stage.READY, Stage.UNLOADING}

    @property
    def free_to_go(self) -> bool:
        return self.stage is Stage.READY and not self.pinned and not self.leases


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do now. `reserved` models take no new requests, so that they become free; `hopeless` ones cannot fit."""

    load: tuple[str, ...] = ()
    unload: tuple[str, ...] = ()
    reserved: frozenset[str] = frozenset()
    hopeless: frozenset[str] = frozenset()


def plan(seats: Sequence[Seat], limits: FleetLimits, *, free_bytes: float, now: float) -> Plan:
    """Serve those that wait in their order. The first one that has to wait for room holds up those behind it."""
    room = _Room(seats, limits, free_bytes)
    unload = [seat for seat in seats if _idle_too_long(seat, limits, now)]
    for seat in unload:
        room.leaves(seat)
    load: list[str] = []
    hopeless: set[str] = set()
    waiting = [s for s in seats if s.wanted_since is not None and not s.holds]
    for seat in sorted(waiting, key=lambda s: s.wanted_since or 0.0):
        if room.fits(seat):
            room.take(seat)
            load.append(seat.name)
            continue
        if room.fits(seat, soon=True):  # what is leaving is enough
            return _plan(load, unload, hopeless)
        idle = sorted((s for s in seats if s.free_to_go and s not in unload), key=lambda s: s.last_used)
        if (leaving := room.enough(seat, idle)) is not None:
            return _plan(load, unload + leaving, hopeless)
        busy = sorted((s for s in seats if _busy(s)), key=lambda s: s.loaded_at)
        if (leaving := room.enough(seat, idle + busy)) is not None:
            turn_over = all(now - s.loaded_at >= limits.turn_s for s in leaving if s.leases)
            return _plan(load, unload, hopeless, reserved=leaving if turn_over else [])
        loading = [s for s in seats if s.stage is Stage.LOADING and not s.pinned]
        if room.enough(seat, idle + busy + loading) is not None or load:
            return _plan(load, unload, hopeless)
        hopeless.add(seat.name)
    return _plan(load, unload, hopeless)


def fits(wanted: Seat, seats: Sequence[Seat], limits: FleetLimits, *, free_bytes: float) -> bool:
    """Whether there is room for it now."""
    return _Room(seats, limits, free_bytes).fits(wanted)


def _plan(load: list[str], unload: list[Seat], hopeless: set[str], *, reserved: Sequence[Seat] = ()) -> Plan:
    return Plan(
        load=tuple(load),
        unload=tuple(s.name for s in unload),
        reserved=frozenset(s.name for s in reserved),
        hopeless=frozenset(hopeless),
    )


def _idle_too_long(seat: Seat, limits: FleetLimits, now: float) -> bool:
    return (
        limits.idle_s is not None
        and seat.free_to_go
        and seat.wanted_since is None
        and now - seat.last_used >= limits.idle_s
    )


def _busy(seat: Seat) -> bool:
    return seat.stage is Stage.READY and not seat.pinned and seat.leases > 0


class _Room:
    """Places and bytes: those that are free now, and those that are being freed.

    How much a model needs is known only roughly, so one that would be alone is always tried. How much a loading model
    already has is not known at all. So what certainly fits is loaded next to it, and for the rest only places count:
    it waits for the end of that load, and nothing is unloaded for memory that may not be needed.
    """

    def __init__(self, seats: Sequence[Seat], limits: FleetLimits, free_bytes: float) -> None:
        holding = [seat for seat in seats if seat.holds]
        self._alone = not holding
        self._loading = any(seat.stage is Stage.LOADING for seat in holding)
        self._places = (float("inf") if limits.max_loaded is None else limits.max_loaded) - len(holding)
        self._bytes = free_bytes - sum(s.size_bytes for s in holding if s.stage is Stage.LOADING)
        self._staying = len(holding)
        self._soon_places, self._soon_bytes = 0, 0
        for seat in holding:
            if seat.stage is Stage.UNLOADING:
                self.leaves(seat)

    def leaves(self, seat: Seat) -> None:
        self._soon_places += 1
        self._soon_bytes += seat.size_bytes
        self._staying -= 1

    def take(self, seat: Seat) -> None:
        self._places -= 1
        self._bytes -= seat.size_bytes
        self._alone = False
        self._staying += 1

    def fits(self, seat: Seat, *, soon: bool = False) -> bool:
        if not soon:
            return self._places >= 1 and (self._alone or not seat.size_bytes or self._bytes >= seat.size_bytes)
        return self._with(seat, self._soon_places, self._soon_bytes, self._staying)

    def enough(self, seat: Seat, candidates: Sequence[Seat]) -> list[Seat] | None:
        """The first candidates whose leaving makes room for it, together with all that is leaving already."""
        places, size, staying = self._soon_places, self._soon_bytes, self._staying
        for number, candidate in enumerate(candidates, 1):
            places, size, staying = places + 1, size + candidate.size_bytes, staying - 1
            if self._with(seat, places, size, staying):
                return list(candidates[:number])
        return None

    def _with(self, seat: Seat, places: int, size: int, staying: int) -> bool:
        enough = self._loading or staying == 0 or not seat.size_bytes or self._bytes + size >= seat.size_bytes
        return self._places + places >= 1 and enough

"""Who is loaded: carries out what the policy decides, and grants or refuses those who wait."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from drivetrain.core.errors import DrivetrainError, NotLoaded, NotReady
from drivetrain.scale.fleet.member import Member
from drivetrain.scale.fleet.moves import Moves
from drivetrain.scale.fleet.policy import FleetLimits, Seat, Stage, fits, plan

LOOK_AGAIN_S = 0.25
"""How often to look again while somebody waits for room: memory becomes free, and turns end, without an event."""

_log = logging.getLogger("drivetrain.fleet")


class Placement:
    """`started` is set when the fleet has started; `closed`, once set, says why nobody gets a lease any more."""

    def __init__(
        self,
        members: Sequence[Member],
        limits: FleetLimits,
        free_bytes: Callable[[], float],
        settled: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._limits = limits
        self.moves = Moves(clock, settled, self.decide)
        self.started = False
        self.closed = ""
        self._members = members
        self._by_name = {member.name: member for member in members}
        self._free_bytes = free_bytes
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None

    def decide(self) -> None:
        """Decide anew, and begin what was decided. Called whenever something has changed."""
        if self.closed or not self._restless():
            return
        now = self._clock()
        self._refuse_late(now)
        for member in self._members:
            if member.broken and not member.leases:  # a new one may do better
                member.gave_up(now)
                _log.warning("%s is unloaded: %s", member.name, member.failure)
                if now < member.retry_at:
                    self.refuse(member, self.not_loaded)
                self.moves.unload(member)
        seats = [member.seat(now, keep_pinned=self.started) for member in self._members]
        waiting = any(seat.wanted_since is not None and not seat.holds for seat in seats)
        todo = plan(seats, self._limits, free_bytes=self._free_bytes() if waiting else float("inf"), now=now)
        goes = todo.unload or any(not self._by_name[name].reserved for name in todo.reserved)
        if goes and self._refuse_spoilt(seats, now):
            self.decide()
            return
        for member in self._members:
            member.reserved = member.name in todo.reserved
            if member.name in todo.hopeless:
                member.withdraw()
                self.refuse(member, lambda m: NotLoaded(f"there is no room for {m.name} next to the pinned models"))
            elif member.stage is Stage.READY and not (member.reserved or member.broken or member.name in todo.unload):
                self._serve(member)
        for name in todo.unload:
            self.moves.unload(self._by_name[name])
        for name in todo.load:
            self.load(self._by_name[name])
        self._look_again(now)

    def _restless(self) -> bool:
        """Whether there may be something to decide."""
        if self._limits.idle_s is not None:
            return True
        return any(
            m.line or m.reserved or m.broken or m.asked_at is not None or (m.pinned and not m.worker)
            for m in self._members
        )

    def load(self, member: Member) -> asyncio.Task[Exception | None]:
        return self.moves.load(member, self._members, lambda: self._loaded(member))

    def has_room(self, member: Member) -> bool:
        member.size_bytes = member.offer.size_bytes()
        now = self._clock()
        others = [m.seat(now) for m in self._members if m is not member]
        return fits(member.seat(now), others, self._limits, free_bytes=self._free_bytes())

    def refuse(self, member: Member, error: Callable[[Member], DrivetrainError]) -> None:
        while member.line:
            member.line.popleft().refuse(error(member))

    def not_loaded(self, member: Member) -> NotLoaded:
        retry_s = max(1.0, member.retry_at - self._clock())
        return NotLoaded(f"{member.name} could not be loaded: {member.failure}", retry_after_s=retry_s)

    def _loaded(self, member: Member) -> None:
        """Those who waited come first; then the other models get their turn."""
        if member.worker is not None:
            self._serve(member)
        else:
            self.refuse(member, self.not_loaded)

    def _serve(self, member: Member) -> None:
        now = self._clock()
        while member.line:
            lease = member.line.popleft()
            if lease.waits:
                member.stats.load_wait_s.observe(now - lease.since)
            member.grant(lease)

    def _refuse_late(self, now: float) -> None:
        """Refuse those who waited too long for a place."""
        for member in self._members:
            while member.line and member.stage is not Stage.LOADING:
                if now - member.line[0].since < self._limits.room_wait_s:
                    break
                error = NotReady(f"all models that could make room for {member.name} are in use", retry_after_s=5.0)
                member.line.popleft().refuse(error)

    def _refuse_spoilt(self, seats: Sequence[Seat], now: float) -> bool:
        """Whether a waiting model cannot be loaded at all. Those are refused, so that no other has to make room."""
        found = False
        for member, seat in zip(self._members, seats, strict=True):
            if seat.wanted_since is not None and not seat.holds and (why := member.offer.spoilt()):
                _log.warning("%s could not be loaded: %s", member.name, why)
                member.failed(why, now)
                self.refuse(member, self.not_loaded)
                found = True
        return found

    def _look_again(self, now: float) -> None:
        self._stop_timer()
        due = []
        for member in self._members:
            if (member.line or member.asked_at is not None) and member.stage is not Stage.LOADING:
                due.append(now + LOOK_AGAIN_S)
            elif member.pinned and member.stage in {Stage.UNLOADED, Stage.FAILED}:
                due.append(max(member.retry_at, now + LOOK_AGAIN_S))
            elif self._limits.idle_s is not None and member.seat(now).free_to_go:
                due.append(member.last_used + self._limits.idle_s)
        if due:
            wait_s = max(0.01, min(due) - now)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self.decide)

    def close(self, why: str) -> None:
        """From now on nobody gets a lease, and those who wait are refused."""
        self.closed = self.closed or why
        self._stop_timer()
        for member in self._members:
            self.refuse(member, lambda m: NotReady(self.closed, retry_after_s=5.0))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

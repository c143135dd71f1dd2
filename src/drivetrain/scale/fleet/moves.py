"""Loads and unloads in progress: one task each, and what becomes of the model in the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from drivetrain.core.errors import DeviceLost, DrivetrainError, OutOfMemory
from drivetrain.scale.fleet.failure import let_go, reason
from drivetrain.scale.fleet.member import Member
from drivetrain.scale.fleet.offer import Opened
from drivetrain.scale.fleet.policy import Stage

_log = logging.getLogger("drivetrain.fleet")


class Moves:
    """`settled` and then `decide` are called when a model has come or gone."""

    def __init__(self, clock: Callable[[], float], settled: Callable[[], None], decide: Callable[[], None]) -> None:
        self._clock = clock
        self._settled = settled
        self._decide = decide
        self._loads: dict[str, asyncio.Task[Exception | None]] = {}
        self._unloads: set[asyncio.Task[None]] = set()

    def load(
        self, member: Member, members: Sequence[Member], ended: Callable[[], None]
    ) -> asyncio.Task[Exception | None]:
        """The task returns what went wrong. `ended` is called in its last step, before anything else is decided."""
        member.stage, member.doing = Stage.LOADING, ("opening", None)
        task = asyncio.create_task(self._load(member, members, ended), name=f"drivetrain-load-{member.name}")
        self._loads[member.name] = task

        def never_ran(task: asyncio.Task[Exception | None]) -> None:  # cancelled before its first step
            if self._loads.get(member.name) is task:
                self._given_up(member)
                self._ended(member, ended)

        task.add_done_callback(never_ran)
        return task

    @property
    def loads(self) -> list[asyncio.Task[Exception | None]]:
        return list(self._loads.values())

    async def _load(self, member: Member, members: Sequence[Member], ended: Callable[[], None]) -> Exception | None:
        failed: Exception | None = None
        try:
            worker = await self._open(member, members)
        except asyncio.CancelledError:
            self._given_up(member)
            raise
        except Exception as exc:  # noqa: BLE001 - whatever one model does, the others continue
            failed = exc
            member.failed(reason(exc), self._clock())
            member.device_lost |= isinstance(exc, DeviceLost)
            expected = isinstance(exc, DrivetrainError)
            _log.warning("%s could not be loaded: %s", member.name, exc, exc_info=None if expected else exc)
            let_go(exc)  # other models are loaded before it is raised
        else:
            member.loaded(worker, self._clock())
            _log.info("%s is loaded", member.name)
        finally:
            self._ended(member, ended)
        return failed

    def _given_up(self, member: Member) -> None:
        member.stage = Stage.UNLOADED
        member.withdraw()

    def _ended(self, member: Member, ended: Callable[[], None]) -> None:
        del self._loads[member.name]
        ended()
        self._changed()

    async def _open(self, member: Member, members: Sequence[Member]) -> Opened:
        """If memory runs out, try once more after unloading every model that nobody uses."""

        def report(what: str, share: float | None) -> None:  # from any thread
            member.doing = (what, share)

        try:
            return await member.offer.open(report)
        except OutOfMemory:
            idle = [m for m in members if m.seat(self._clock()).free_to_go and not m.line]
            if not idle:
                raise
        await asyncio.wait([self.unload(other) for other in idle])  # these continue even if this load is given up
        return await member.offer.open(report)

    def unload(self, member: Member) -> asyncio.Task[None]:
        return self._begin_unload(member, member.leaves())

    def _begin_unload(self, member: Member, worker: Opened) -> asyncio.Task[None]:
        task = asyncio.create_task(self._unload(member, worker), name=f"drivetrain-unload-{member.name}")
        self._unloads.add(task)
        task.add_done_callback(self._unloads.discard)
        return task

    async def _unload(self, member: Member, worker: Opened) -> None:
        try:
            await worker.stop()
        except Exception:  # noqa: BLE001 - it is logged, and the others continue
            _log.exception("%s was not unloaded cleanly", member.name)
        finally:
            del worker
            member.left()
            _log.info("%s is unloaded", member.name)
            self._changed()

    def _changed(self) -> None:
        self._settled()
        self._decide()

    def give_up(self, member: Member) -> None:
        """Cancel a load; the model is then not loaded."""
        self._loads[member.name].cancel()

    async def give_up_all(self) -> None:
        if loads := self.loads:
            for load in loads:
                load.cancel()
            await asyncio.wait(loads)

    async def stop(self, members: Sequence[Member]) -> None:
        """Unload every model that we opened, in use or not: its worker ends what still runs."""
        for member in members:
            if (worker := member.owned) is not None:
                member.stage, member.worker, member.owned = Stage.UNLOADING, None, None
                self._begin_unload(member, worker)
        if self._unloads:
            await asyncio.wait(self._unloads)

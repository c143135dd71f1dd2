"""Loads and unloads under way: one task each, and what becomes of the model at its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

from drivetrain.core.errors import DrivetrainError, OutOfMemory
from drivetrain.fleet.failure import reason
from drivetrain.fleet.member import Member
from drivetrain.fleet.offer import Opened
from drivetrain.fleet.stage import Stage

_log = logging.getLogger("drivetrain.fleet")


class Moves:
    """`settled` and then `think` are called when a model has come or gone."""

    def __init__(self, clock: Callable[[], float], settled: Callable[[], None], think: Callable[[], None]) -> None:
        self._clock = clock
        self._settled = settled
        self._think = think
        self._loads: dict[str, asyncio.Task[Exception | None]] = {}
        self._unloads: set[asyncio.Task[None]] = set()

    def load(
        self, member: Member, members: Sequence[Member], ended: Callable[[], None]
    ) -> asyncio.Task[Exception | None]:
        """The task gives what went wrong. `ended` is called in its last step, before anything else is thought of."""
        member.stage, member.doing = Stage.LOADING, ("opening", None)
        task = asyncio.create_task(self._load(member, members, ended), name=f"drivetrain-load-{member.name}")
        self._loads[member.name] = task
        return task

    async def _load(self, member: Member, members: Sequence[Member], ended: Callable[[], None]) -> Exception | None:
        failed: Exception | None = None
        try:
            worker = await self._open(member, members)
        except asyncio.CancelledError:
            member.stage = Stage.UNLOADED
            member.withdraw()
            raise
        except Exception as exc:  # noqa: BLE001 - whatever a model does, the others go on
            failed = exc
            member.failed(reason(exc), self._clock())
            expected = isinstance(exc, DrivetrainError)
            _log.warning("%s could not be loaded: %s", member.name, exc, exc_info=None if expected else exc)
        else:
            member.loaded(worker, self._clock())
            _log.info("%s is loaded", member.name)
        finally:
            self._loads.pop(member.name, None)
            ended()
            self._changed()
        return failed

    async def _open(self, member: Member, members: Sequence[Member]) -> Opened:
        """Where the memory was too little, once more when all that nobody uses has gone."""

        def report(what: str, share: float | None) -> None:  # from any thread
            member.doing = (what, share)

        try:
            return await member.offer.open(report)
        except OutOfMemory:
            idle = [m for m in members if m.seat(self._clock()).free_to_go and not m.line]
            if not idle:
                raise
        await asyncio.gather(*(self.unload(other) for other in idle))
        return await member.offer.open(report)

    def unload(self, member: Member) -> asyncio.Task[None]:
        worker = member.leaves()
        task = asyncio.create_task(self._unload(member, worker), name=f"drivetrain-unload-{member.name}")
        self._unloads.add(task)
        task.add_done_callback(self._unloads.discard)
        return task

    async def _unload(self, member: Member, worker: Opened) -> None:
        try:
            await worker.stop()
        except Exception:  # noqa: BLE001 - it is logged, and the others go on
            _log.exception("%s could not be unloaded in order", member.name)
        finally:
            del worker
            member.left()
            _log.info("%s is unloaded", member.name)
            self._changed()

    def _changed(self) -> None:
        self._settled()
        self._think()

    def give_up(self, member: Member) -> None:
        """End a load; the model is then not loaded."""
        self._loads[member.name].cancel()

    async def give_up_all(self) -> None:
        loads = list(self._loads.values())
        for load in loads:
            load.cancel()
        await asyncio.gather(*loads, return_exceptions=True)

    async def stop(self, members: Sequence[Member]) -> None:
        """Unload every one that is ours, in use or not: its worker ends what still runs."""
        async with asyncio.TaskGroup() as group:
            for member in members:
                if (worker := member.owned) is not None:
                    member.stage, member.worker, member.owned = Stage.UNLOADING, None, None
                    group.create_task(self._unload(member, worker))
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*self._unloads, return_exceptions=True)

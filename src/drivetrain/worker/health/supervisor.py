"""Looks after a worker's engine: notices when it has failed, and has it replaced or says that it cannot be."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from drivetrain.core.engine import Engine, EngineInfo, Health
from drivetrain.core.errors import DeviceLost, DrivetrainError, EngineFailed
from drivetrain.core.results import NOTHING_COUNTED, EngineCounts
from drivetrain.core.stats import Stats
from drivetrain.core.status import State
from drivetrain.worker.admission import Admission
from drivetrain.worker.health.closing import close
from drivetrain.worker.health.revival import Hung, Reviver
from drivetrain.worker.health.watchdog import Watchdog, answers

LOOK_SOON_S = 0.05
"""From a request's failure to the check of the engine; others that failed at the same time are counted by then."""

_log = logging.getLogger(__name__)


class Supervisor:
    """Owns the engine and the worker's state. Runs on one event loop.

    `serve` prepares to serve requests with a loaded engine and returns how many may run at once; `end_running` ends the
    requests on a failed one, with a reason. Without a `reviver`, engines are not replaced.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        name: str,
        stall_s: float,
        reviver: Reviver | None,
        max_waiting: int,
        stats: Stats,
        serve: Callable[[EngineInfo], int],
        end_running: Callable[[str], None],
    ) -> None:
        self.engine = engine
        self.state = State.LOADING
        self.lost = False
        """Whether only a new process helps."""
        self.admission = Admission(
            max_running=0,
            max_waiting=max_waiting,
            alive=lambda: self._health().alive,
            patient=lambda: reviver is not None and not self._health().mends_itself,
        )
        self._name = name
        self._stall_s = stall_s
        self._watchdog = Watchdog(stall_s)
        self._reviver = reviver
        self._reviving: asyncio.Task[None] | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._probing: asyncio.Task[None] | None = None
        self._info: EngineInfo | None = None
        self._stats = stats
        self._counted = NOTHING_COUNTED
        """What the stats have of this engine."""
        self._serve = serve
        self._end_running = end_running

    def ready(self, info: EngineInfo) -> None:
        """The engine has loaded: let requests in."""
        self._info = info
        self._count(self._health())
        max_running = self._serve(info)
        self.state = State.READY
        self.admission.open(max_running)

    def ended(self, error: DrivetrainError | None) -> None:
        """A request that reached the engine has ended."""
        self._watchdog.ended(error, self._stats.completion_tokens)
        self._count(self._health())
        if isinstance(error, EngineFailed):
            self.look_soon()

    def look_soon(self) -> None:
        """A request has failed in the engine: check the engine shortly."""
        if self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(LOOK_SOON_S, self._look_soon)

    def _look_soon(self) -> None:
        self._looking = None
        self.look()

    def look(self) -> None:
        """Check the engine, and act if something is wrong."""
        if self.state is not State.READY:
            return
        health, tokens = self._health(), self._stats.completion_tokens
        self._count(health)
        if why := self._watchdog.complaint(health, wanted=self.admission.running > 0, tokens=tokens):
            self._give_up(why)
        elif self._probing is None and (doubt := self._watchdog.doubt(health, tokens)):
            self._probing = asyncio.create_task(self._probe(doubt), name="drivetrain-probe")

    async def _probe(self, doubt: str) -> None:
        """Ask the engine a request of our own, so that bad requests alone never have a sound engine replaced."""
        assert self._info is not None
        engine, moved_at = self.engine, self._health().last_progress
        try:
            answered = await answers(engine, self._info)
        finally:
            self._probing = None
        if self.state is not State.READY or self.engine is not engine:
            return
        health = self._health()
        if answered:
            _log.warning("%s: %s; it answers other requests, so these are at fault", self._name, doubt)
            self._watchdog.trust()
        elif answered is None and health.last_progress > moved_at:
            self.look_soon()  # it is making progress, but was too busy to answer in time
        elif self._watchdog.doubt(health, self._stats.completion_tokens):
            self._give_up(doubt)

    def _give_up(self, why: str) -> None:
        """Have the engine replaced; if that is not possible, the worker has failed."""
        if self._watchdog.lost is not None:
            self._fail(f"{why}; restart the process", lost=True)
        elif self._reviver is None:
            self._fail(f"{why}; it is not restarted automatically: restart the process")
        else:
            _log.error("%s: %s", self._name, why)
            self.state = State.RESTARTING
            self.admission.hold()
            self._reviving = asyncio.create_task(self._revive(self._reviver), name="drivetrain-revive")
        self._end_running(why)

    def _health(self) -> Health:
        try:
            return self.engine.health()
        except Exception as exc:  # noqa: BLE001 - an engine that cannot report its health has failed
            if self.state is State.READY:
                _log.exception("%s: the engine failed to report its health", self._name)
            return Health(False, 0, time.monotonic(), f"the engine failed to report its health: {type(exc).__name__}")

    async def _revive(self, reviver: Reviver) -> None:
        """Whatever goes wrong, the worker ends up in a true state, and no engine that can be closed is left behind."""
        old = self.engine
        try:
            self._count(self._health())
            self.engine, info = await reviver.revive(old)
            self._counted = NOTHING_COUNTED
            self._watchdog = Watchdog(self._stall_s)
            self.ready(info)
            self._stats.restarts += 1
        except Hung as exc:
            self._fail(exc.message)
        except Exception as exc:  # noqa: BLE001 - nobody awaits this task
            _log.exception("%s: could not replace the failed engine", self._name)
            why = (
                exc.message if isinstance(exc, DrivetrainError) else f"the engine cannot be used: {type(exc).__name__}"
            )
            self._fail(f"{why}; restart the process", lost=isinstance(exc, DeviceLost))
            await close(self.engine)

    def _fail(self, why: str, *, lost: bool = False) -> None:
        _log.critical("%s: %s", self._name, why)
        self.state, self.lost = State.FAILED, lost
        self.admission.close(why)
        self._end_running(why)

    async def stop_reviving(self) -> None:
        if self._reviving is not None:
            self._reviving.cancel()
            await asyncio.gather(self._reviving, return_exceptions=True)

    async def close(self) -> None:
        """Close the engine, even if it hangs, and end all tasks that look after it."""
        if self._looking is not None:
            self._looking.cancel()
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.gather(self._probing, return_exceptions=True)
        await self.stop_reviving()
        self._count(self._health())
        await close(self.engine)

    def _count(self, health: Health) -> None:
        """Also before the engine is closed: after that, its own counts are gone."""
        self._stats.engine = self.counted_by(health)
        self._counted = self._counted.or_more(health.counts)

    def counted_by(self, health: Health) -> EngineCounts:
        """By this engine and by those before it."""
        return self._stats.engine.plus(health.counts.since(self._counted))

"""Replaces an engine that has failed: closes it and loads the model again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from drivetrain.core.engine import Engine, EngineInfo, ModelSpec, Progress
from drivetrain.core.errors import DeviceLost, EngineFailed
from drivetrain.worker.health.closing import close

FIRST_S = 1.0
LONGEST_S = 60.0

_log = logging.getLogger(__name__)


class Hung(EngineFailed):
    """An engine that this process cannot end, and that keeps its memory."""


class Reviver:
    """`make` gives an engine that is not loaded yet. Attempts are spaced out over the reviver's whole life."""

    def __init__(self, make: Callable[[], Engine], spec: ModelSpec, progress: Progress) -> None:
        self._make = make
        self._spec = spec
        self._progress = progress
        self._backoff = Backoff()
        self._since = time.monotonic()

    async def revive(self, old: Engine) -> tuple[Engine, EngineInfo]:
        """Tries until one loads. Raises `Hung` or `DeviceLost`. Leaves no engine behind if it is cancelled."""
        if not await close(old):
            raise Hung("the engine hangs and cannot be stopped; restart this process")
        lived_s = time.monotonic() - self._since
        while True:
            wait_s = self._backoff.wait_s(lived_s)
            _log.warning("restarting the engine of %s in %g s", self._spec.name, wait_s)
            await asyncio.sleep(wait_s)
            lived_s = 0.0
            try:
                loaded = await self._load()
            except (DeviceLost, Hung):
                raise
            except Exception as exc:  # noqa: BLE001 - whatever it is, the next attempt may work
                _log.error("the engine of %s failed to start: %s", self._spec.name, exc)
            else:
                self._since = time.monotonic()
                _log.warning("the engine of %s is running again", self._spec.name)
                return loaded

    async def _load(self) -> tuple[Engine, EngineInfo]:
        engine = self._make()
        try:
            return engine, await engine.load(self._spec, self._progress)
        except BaseException:
            if not await close(engine):
                raise Hung("an engine hangs while loading and cannot be stopped; restart this process") from None
            raise


class Backoff:
    """Waits before attempts: 1, 2, 4 … 60 seconds, starting over if the last engine lived longer than that."""

    def __init__(self) -> None:
        self._next_s = FIRST_S

    def wait_s(self, lived_s: float) -> float:
        """`lived_s` is how long the engine that just ended had been running; 0 if it never ran."""
        if lived_s > LONGEST_S:
            self._next_s = FIRST_S
        now_s, self._next_s = self._next_s, min(LONGEST_S, self._next_s * 2)
        return now_s

"""What is wrong with an engine, told from outside: it is dead, it does not move, or it has no memory left."""

from __future__ import annotations

import time
from collections.abc import Callable

from drivetrain.core.engine import Health
from drivetrain.core.errors import DrivetrainError, InvalidRequest, OutOfMemory, Overloaded

TIMES_OUT_OF_MEMORY = 3
"""So many requests in a row, and in between none that came to an answer and no token of any other."""


class Watchdog:
    """Is shown the engine's health now and then, and each ending."""

    def __init__(self, stall_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._stall_s = stall_s
        self._clock = clock
        self._idle_until = clock()
        self._out_of_memory = 0
        self._tokens = 0
        """That had been given when memory ran out for the last time."""

    def ended(self, error: DrivetrainError | None, tokens: int = 0) -> None:
        """`tokens`: as many as were given in all until now."""
        if isinstance(error, OutOfMemory):
            self._out_of_memory = self._out_of_memory + 1 if tokens == self._tokens else 1
            self._tokens = tokens
        elif not isinstance(error, (InvalidRequest, Overloaded)):
            self._out_of_memory = 0

    def complaint(self, health: Health, tokens: int = 0) -> str:
        """In words; empty if nothing is wrong, or if the engine mends itself."""
        now = self._clock()
        if not health.active:
            self._idle_until = now
        if health.mends_itself:
            return ""
        if not health.alive:
            return health.detail or "the engine has ended"
        still_s = now - max(health.last_progress, self._idle_until)
        if health.active and still_s > self._stall_s:
            return f"the engine has not moved for {still_s:.0f} seconds"
        if self._out_of_memory >= TIMES_OUT_OF_MEMORY and tokens == self._tokens:
            return f"{self._out_of_memory} requests in a row ran out of memory"
        return ""

"""What is wrong with an engine, told from outside: it is dead, it does not move, or it has no memory left."""

from __future__ import annotations

import time
from collections.abc import Callable

from drivetrain.core.engine import Health
from drivetrain.core.errors import DrivetrainError, InvalidRequest, OutOfMemory, Overloaded

TIMES_OUT_OF_MEMORY = 3
"""So many requests in a row, and in between none that came to an answer and no token of any other."""


class Watchdog:
    """Is shown the engine's health now and then, and each ending.

    How long an engine has not moved is counted while something is wanted of it, over as many requests as meet their
    deadline or leave meanwhile: they may come one after the other, with pauses between them.
    """

    def __init__(self, stall_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._stall_s = stall_s
        self._clock = clock
        self._still_s = 0.0
        self._looked = clock()
        self._wanted = False
        self._signs: tuple[float, int] = (0.0, 0)
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

    def complaint(self, health: Health, *, wanted: bool, tokens: int = 0) -> str:
        """In words; empty if nothing is wrong, or if the engine mends itself.

        `wanted`: whether requests have a place, also those that have not come to the engine yet.
        """
        self._count_stillness(health, tokens, wanted)
        if health.mends_itself:
            return ""
        if not health.alive:
            return health.detail or "the engine has ended"
        if self._still_s > self._stall_s:
            return f"the engine has not moved for {self._still_s:.0f} seconds"
        if self._out_of_memory >= TIMES_OUT_OF_MEMORY and tokens == self._tokens:
            return f"{self._out_of_memory} requests in a row ran out of memory"
        return ""

    def _count_stillness(self, health: Health, tokens: int, wanted: bool) -> None:
        now, signs = self._clock(), (health.last_progress, tokens)
        if signs != self._signs:
            self._signs, self._still_s = signs, 0.0
        elif self._wanted:
            self._still_s += now - self._looked
        self._looked, self._wanted = now, wanted

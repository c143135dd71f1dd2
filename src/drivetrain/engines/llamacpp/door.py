"""Prompts go to llama.cpp a few at a time: the next ones as soon as it has begun with those before.

It computes all the prompts that it knows of in one step, as far as the batch reaches, and none of them has a token
before the step is over. Where a step takes as long as it has tokens, as on a CPU, prompts one after another answer
sooner on the whole: four of equal length after 1, 2, 3 and 4 parts of the time after which all four would answer at
once. And it is not a matter of luck which ones of a burst are there when a step begins: the next prompt is sent while
the step before it runs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

CPU_ROOM = 32
"""Tokens of prompts in one step; more of them do not make the step better used."""

GPU_ROOM = 512


class Entry:
    """A prompt that may be sent."""

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave: Callable[[], None] | None = leave

    def leave(self) -> None:
        """llama.cpp has begun with it, or never will. Once is as good as often."""
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()


class Door:
    """First come, first served. Behind it are prompts of at most `room` tokens, or a single longer one."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._inside = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def enter(self, size: int) -> Entry:
        """Wait for the turn of a prompt of so many tokens that are not cached. Cancelling gives up the place."""
        if self._waiting or not self._fits(size):
            await self._turn(size)
        else:
            self._inside += size
        return Entry(lambda: self._leave(size))

    async def _turn(self, size: int) -> None:
        place = (size, asyncio.get_running_loop().create_future())
        self._waiting.append(place)
        try:
            await place[1]
        except asyncio.CancelledError:
            if place in self._waiting:
                self._waiting.remove(place)
                self._admit()  # the next one may be smaller
            else:
                self._leave(size)
            raise

    def _leave(self, size: int) -> None:
        self._inside -= size
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size, turn = self._waiting.popleft()
            self._inside += size
            turn.set_result(None)

    def _fits(self, size: int) -> bool:
        return not self._inside or self._inside + size <= self._room

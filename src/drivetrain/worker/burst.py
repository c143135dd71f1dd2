"""Requests that come at once start at once.

An idle engine would otherwise begin with the first of them alone, and all others wait for that step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

GATHER_S = 0.04
"""How long a prepared request waits at most for those that come with it."""

QUIET_S = 0.001
"""After which nobody is taken to come with it any more."""


class Burst:
    """Who is being prepared, and who is ready and waits for them. All on one event loop."""

    def __init__(self) -> None:
        self._preparing = 0
        self._num_come = 0
        self._gate: asyncio.Event | None = None

    @contextmanager
    def preparing(self) -> Iterator[None]:
        self._preparing += 1
        self._num_come += 1
        try:
            yield
        finally:
            self._preparing -= 1

    async def over(self) -> None:
        """Return once nobody is being prepared and nobody new has come for a moment, all who wait in one turn."""
        if self._gate is None:
            self._gate = asyncio.Event()
            self._look_later(asyncio.get_running_loop().time() + GATHER_S)
        await self._gate.wait()

    def _look_later(self, until: float) -> None:
        asyncio.get_running_loop().call_later(QUIET_S, self._look, self._num_come, until)

    def _look(self, come: int, until: float) -> None:
        assert self._gate is not None
        if (self._preparing or come != self._num_come) and asyncio.get_running_loop().time() < until:
            self._look_later(until)
            return
        self._gate.set()
        self._gate = None

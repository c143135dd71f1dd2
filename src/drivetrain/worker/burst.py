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
"""After the last one came, when nobody is taken to come with it any more."""


class Burst:
    """Who is being prepared, and who is ready and waits for them. All on one event loop."""

    def __init__(self) -> None:
        self._preparing = 0
        self._num_come = 0
        self._last_came = 0.0
        self._waiting: list[asyncio.Future[None]] = []

    @contextmanager
    def preparing(self) -> Iterator[None]:
        self._preparing += 1
        self._num_come += 1
        self._last_came = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            self._preparing -= 1

    def over(self) -> asyncio.Future[None]:
        """Done once nobody is being prepared and nobody new has come for a moment, for all who wait in one turn."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            quiet = max(self._last_came + QUIET_S, loop.time())  # preparing took its time, in which others were heard
            loop.call_at(quiet, self._look, self._num_come, loop.time() + GATHER_S)
        self._waiting.append(loop.create_future())
        return self._waiting[-1]

    def _look(self, come: int, until: float) -> None:
        loop = asyncio.get_running_loop()
        if (self._preparing or come != self._num_come) and loop.time() < until:
            loop.call_later(QUIET_S, self._look, self._num_come, until)
            return
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

"""Who begins in the next step of llama.cpp: few prompts, and only such as it takes whole.

llama.cpp fills a step with every prompt that it has, and cuts the last where the step is full. All first tokens of a
step come at its end, and where each token more takes as much time as the last, prompts that share a step only wait for
one another; for a part of a prompt they wait and get nothing. So a prompt is given when it fits beside those that have
not begun; the others when these have, in time for the step after.

A prompt longer than a step is given at once, and as long as it fills whole steps so is every other: which of them comes
first is decided there, and waiting here would let none come sooner.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

SHARED_ON_CPU = 64
"""On a CPU a step takes as much longer as it has more of them, from about 30 on. With 32, a burst of 16 gets its first
tokens later again: each step has more streams beside the prompts."""

Left = Callable[[int], None]
"""Told as a step of llama.cpp begins: how many tokens of the prompt were left before it."""


class StepRoom:
    """First come, first served. All on one event loop."""

    def __init__(self, shared: int, step: int) -> None:
        """In tokens of prompts: what prompts may share a step, and what a step takes."""
        self._shared = shared
        self._step = step
        self._free = shared
        self._cut = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def taken(self, tokens: int) -> AsyncIterator[Left]:
        """Around the time that llama.cpp has a prompt, of which it will compute about so many tokens."""
        whole, share = tokens <= self._step, min(tokens, self._shared)
        if whole:
            await self._take(share)
        else:
            self._cut += 1
            self._let_in()
        held = True

        def left(tokens_left: int) -> None:
            nonlocal held
            if not held or tokens_left > self._step:
                return
            held = False
            if whole:
                self._free += share
            else:
                self._cut -= 1
            self._let_in()

        try:
            yield left
        finally:
            left(0)

    async def _take(self, share: int) -> None:
        if share == 1 or (not self._waiting and self._fits(share)):  # a token holds up nobody: so an answer goes on
            self._free -= share
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((share, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._free += share  # it was let in at that very moment
            self._let_in()
            raise

    def _let_in(self) -> None:
        while self._waiting:
            share, turn = self._waiting[0]
            if not turn.done():
                if not self._fits(share):
                    return
                self._free -= share
                turn.set_result(None)
            self._waiting.popleft()

    def _fits(self, share: int) -> bool:
        return self._cut > 0 or share <= self._free

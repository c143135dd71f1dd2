"""Who has which of llama.cpp's slots, and what is still in their caches. Each slot serves one choice at a time.

We name the slot with every request instead of letting the server choose: so a slot is known to be free, not
guessed, and a prompt goes where its beginning is cached.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

ENOUGH = 0.5
"""A cached beginning decides for its slot if it is at least this share of the prompt; else the oldest slot goes."""


@dataclass(slots=True, eq=False)
class Slot:
    """`cached` are the ids that its cache begins with, as far as we know."""

    id: int
    cached: tuple[int, ...] = ()
    used: int = 0


class SlotPool:
    """First come, first served."""

    def __init__(self, count: int) -> None:
        self._free = [Slot(i) for i in range(count)]
        self._semaphore = asyncio.Semaphore(count)
        self._uses = 0

    @asynccontextmanager
    async def taken(self, prompt: tuple[int, ...]) -> AsyncIterator[Slot]:
        async with self._semaphore:
            slot = self._best(prompt)
            self._free.remove(slot)
            self._uses += 1
            slot.used = self._uses
            try:
                yield slot
            finally:
                self._free.append(slot)

    def _best(self, prompt: tuple[int, ...]) -> Slot:
        shared = {slot: common_prefix(slot.cached, prompt) for slot in self._free}
        best = max(self._free, key=lambda slot: (shared[slot], -slot.used))
        if shared[best] >= ENOUGH * len(prompt):
            return best
        return min(self._free, key=lambda slot: slot.used)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many items at the start are the same; by halves, since slices compare fast."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low

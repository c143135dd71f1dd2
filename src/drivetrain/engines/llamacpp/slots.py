"""Who has which of llama.cpp's slots, and what is still in their caches. Each slot serves one choice at a time.

We name the slot with every request instead of letting the server choose: so a slot is known to be free, not
guessed, and a prompt goes where its beginning is cached.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

KEEP_WORTH = 0.2
"""What an id cached just now is worth to somebody later, beside the 1 of a prompt that begins with it."""


UNKNOWN = object()
"""The salt of a cache that a request was sent to and perhaps never came to."""


@dataclass(slots=True, eq=False)
class ServerSlot:
    """`cached` are the ids that its cache begins with, as far as we know; only for who brings the same salt."""

    id: int
    cached: tuple[int, ...] = ()
    salt: object = None
    used: int = 0

    def shared(self, prompt: tuple[int, ...], salt: str | None) -> int:
        return common_prefix(self.cached, prompt) if self.salt == salt else 0


class SlotPool:
    """First come, first served."""

    def __init__(self, count: int) -> None:
        self._free = [ServerSlot(i) for i in range(count)]
        self._count = count
        self._semaphore = asyncio.Semaphore(count)
        self._uses = 0

    @asynccontextmanager
    async def taken(self, prompt: tuple[int, ...], salt: str | None = None) -> AsyncIterator[ServerSlot]:
        async with self._semaphore:
            slot = self._best(prompt, salt)
            self._free.remove(slot)
            self._uses += 1
            slot.used = self._uses
            try:
                yield slot
            finally:
                self._free.append(slot)

    def _best(self, prompt: tuple[int, ...], salt: str | None) -> ServerSlot:
        """Where the least is lost: ids to compute now, and ids thrown away, old ones less; of equals the oldest."""

        def loss(slot: ServerSlot) -> float:
            shared = slot.shared(prompt, salt)
            age = (self._uses - slot.used) / self._count
            return len(prompt) - shared + KEEP_WORTH * (len(slot.cached) - shared) / (1 + age)

        return min(self._free, key=lambda slot: (loss(slot), slot.used))


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

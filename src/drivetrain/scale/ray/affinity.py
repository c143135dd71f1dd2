"""Which replica was last sent which beginnings. Knows no Ray."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence

MAX_BLOCKS = 100_000
"""Kept at most, the least recently used go first; some 10 MB in each process that calls replicas."""

MAX_LEAD = 4
"""A replica with so many more calls than the least busy one is passed over, whatever it has seen."""


class PrefixAffinity:
    def __init__(self, max_blocks: int = MAX_BLOCKS) -> None:
        self._where: OrderedDict[int, Hashable] = OrderedDict()
        self._max = max_blocks

    def note(self, prefix: Sequence[int], replica: Hashable) -> None:
        for block in prefix:
            self._where[block] = replica
            self._where.move_to_end(block)
        while len(self._where) > self._max:
            self._where.popitem(last=False)

    def choose(self, prefix: Sequence[int], loads: Mapping[Hashable, int]) -> Hashable | None:
        """The one among `loads` that has seen the longest beginning, if it is not much busier than the others."""
        for block in reversed(prefix):
            replica = self._where.get(block)
            if replica is not None and replica in loads:
                return replica if loads[replica] < min(loads.values()) + MAX_LEAD else None
        return None

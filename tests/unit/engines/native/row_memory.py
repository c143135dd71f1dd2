"""What the tensors of the KV cache would hold, as lists: for tests of the accounting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drivetrain.engines.native.kv.rows import Clear, Copy, Grow, Operation, RowPlace, Trim


class RowMemory:
    """Does the operations as the cache does, and complains where it could not."""

    def __init__(self) -> None:
        self.segments: dict[int, list[int]] = {}
        self.rows: dict[RowPlace, list[Any]] = {}

    def apply(self, operations: Sequence[Operation]) -> None:
        for operation in operations:
            match operation:
                case Grow(capacity, rows):
                    self.segments.setdefault(capacity, []).append(rows)
                case Trim(capacity):
                    self.segments[capacity].pop()
                    self.rows = {place: held for place, held in self.rows.items() if self.exists(place)}
                case Copy(source, target, length):
                    assert self.exists(source)
                    assert self.exists(target)
                    assert length <= target.capacity
                    self.rows[target] = self.rows.get(source, [])[:length]
                case Clear(place):
                    self.rows[place] = []

    def exists(self, place: RowPlace) -> bool:
        return 0 <= place.index < sum(self.segments[place.capacity])

    def write(self, place: RowPlace, start: int, values: Sequence[Any]) -> None:
        """As a forward pass does: over what was there, from a position on."""
        assert self.exists(place)
        assert start + len(values) <= place.capacity
        held = self.rows.setdefault(place, [])
        assert len(held) >= start
        held[start:] = values

"""Finds the longest beginning of a prompt that is already in the KV cache. No tensors here.

Ids are looked up in blocks. Each block's key is chained to the one before, so one key stands for a whole beginning. A
`salt` keeps the beginnings of different tenants apart.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from drivetrain.engines.native.kv.rows import CacheRow

BLOCK = 16


@dataclass(frozen=True, slots=True)
class Hit:
    """The first `length` tokens of `slot` are the wanted ones."""

    slot: CacheRow
    length: int


@dataclass(frozen=True, slots=True)
class _Entry:
    ids: tuple[int, ...]
    salt: Hashable
    keys: tuple[int, ...]


class PrefixIndex:
    """`add` what a row holds, `forget` the row when it is used for something else."""

    def __init__(self, block: int = BLOCK) -> None:
        self.block = block
        self._entries: dict[CacheRow, _Entry] = {}
        self._holders: dict[int, dict[CacheRow, None]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def worth_keeping(self, ids: Sequence[int], salt: Hashable = None) -> bool:
        """Whether these ids fill a block, and no row holds their blocks yet."""
        keys = self._keys(ids, salt)
        return bool(keys) and not self._holders.get(keys[-1])

    def add(self, slot: CacheRow, ids: Sequence[int], salt: Hashable = None) -> None:
        """The row begins with these ids, all computed. Replaces what was noted of it before."""
        self.forget(slot)
        keys = self._keys(ids, salt)
        if not keys:
            return
        self._entries[slot] = _Entry(tuple(ids), salt, keys)
        for key in keys:
            self._holders.setdefault(key, {})[slot] = None

    def forget(self, slot: CacheRow) -> None:
        entry = self._entries.pop(slot, None)
        for key in entry.keys if entry is not None else ():
            holders = self._holders[key]
            del holders[slot]
            if not holders:
                del self._holders[key]

    def find(self, ids: Sequence[int], limit: int, salt: Hashable = None) -> Hit | None:
        """The longest common beginning, at least one block and at most `limit` tokens."""
        best: CacheRow | None = None
        for key in self._keys(ids[: max(limit, 0)], salt):
            holders = self._holders.get(key)
            if not holders:
                break
            best = next(reversed(holders))
        if best is None:
            return None
        entry = self._entries[best]
        length = common(entry.ids, ids, limit)  # compared id by id: a key is only a hash
        return Hit(best, length) if length >= self.block and entry.salt == salt else None

    def _keys(self, ids: Sequence[int], salt: Hashable) -> tuple[int, ...]:
        keys: list[int] = []
        key = hash(("salt", salt))
        for start in range(0, len(ids) - self.block + 1, self.block):
            key = hash((key, *ids[start : start + self.block]))
            keys.append(key)
        return tuple(keys)


def common(a: Sequence[int], b: Sequence[int], limit: int) -> int:
    """How many ids, at most `limit`, both begin with."""
    most = min(len(a), len(b), limit)
    return next((i for i in range(most) if a[i] != b[i]), most)

"""Who owns which row of the KV cache, in size classes and within a budget of bytes. No tensors here.

A row holds one sequence's keys and values in every layer. Rows of one capacity form a class, which grows by segments.
In a class the hot rows (of running sequences) are always the first ones, so that attention can take them as one block;
cold rows (beginnings kept for later prompts) stand behind them and can be evicted. What must happen to the tensors is
written down as operations, in order; `drain` hands them to the cache, which does them before the next forward pass.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

FIRST_CAPACITY = 128
FIRST_SEGMENT = 4
"""The least number of rows that a class begins with; each further segment doubles it."""

FIRST_SEGMENT_TOKENS = 2048
"""Classes of short rows begin with more, because attention runs once per segment."""

FIRST_SEGMENT_SHARE = 1 / 16
"""The most of the budget that goes into such a first segment."""

_ASTRAY = "a row is not where it should be"
_USE = "the cold rows and their order of use differ"


class BooksDisagree(Exception):
    """The accounting contradicts itself: a defect of ours."""


@dataclass(slots=True, eq=False)
class CacheRow:
    """One row in use. Its place may change between steps; the object stays the same.

    `filled` tokens of it are valid: whoever computes or copies into it says so.
    """

    capacity: int
    index: int
    filled: int = 0
    hot: bool = True
    alive: bool = True

    @property
    def place(self) -> RowPlace:
        return RowPlace(self.capacity, self.index)


@dataclass(frozen=True, slots=True)
class RowPlace:
    capacity: int
    index: int


@dataclass(frozen=True, slots=True)
class Grow:
    """The class gets `rows` more, as one segment."""

    capacity: int
    rows: int


@dataclass(frozen=True, slots=True)
class Trim:
    """The last segment of the class is given back; nothing is in it."""

    capacity: int


@dataclass(frozen=True, slots=True)
class Copy:
    """The first `length` tokens of one row, in all layers."""

    source: RowPlace
    target: RowPlace
    length: int


@dataclass(frozen=True, slots=True)
class Clear:
    """The row held NaN, which would outlast any mask: write zeros."""

    place: RowPlace


Operation = Grow | Trim | Copy | Clear


@dataclass(slots=True)
class SizeClass:
    """Hot rows are `0 .. len(hot) - 1`; a cold row is any other one that `cold` names; the rest is free.

    A large machine has thousands of cold rows, and one prompt may evict all of them, so what each eviction needs is
    counted here, not searched for.
    """

    capacity: int
    row_bytes: int
    segments: list[int] = field(default_factory=list)
    hot: list[CacheRow] = field(default_factory=list)
    cold: dict[int, CacheRow] = field(default_factory=dict)
    num_cold_in: list[int] = field(default_factory=list)
    """Of each segment."""
    by_use: OrderedDict[CacheRow, None] = field(default_factory=OrderedDict)
    """The cold rows, least recently used first."""

    @property
    def rows(self) -> int:
        return sum(self.segments)

    @property
    def free(self) -> int:
        return self.rows - len(self.hot) - len(self.cold)

    def free_index(self, *, but: int = -1) -> int:
        """The lowest free row. There must be one."""
        return next(i for i in range(len(self.hot), self.rows) if i not in self.cold and i != but)

    @property
    def tail_is_idle(self) -> bool:
        """Whether nothing is in the last segment."""
        if not self.segments:
            return False
        return len(self.hot) <= self.rows - self.segments[-1] and not self.num_cold_in[-1]

    def grow(self, rows: int) -> None:
        self.segments.append(rows)
        self.num_cold_in.append(0)

    def trim(self) -> None:
        self.segments.pop()
        self.num_cold_in.pop()

    def put_cold(self, slot: CacheRow) -> None:
        """At its index."""
        self.cold[slot.index] = slot
        self.num_cold_in[self._segment_of(slot.index)] += 1

    def pop_cold(self, slot: CacheRow) -> None:
        del self.cold[slot.index]
        self.num_cold_in[self._segment_of(slot.index)] -= 1

    def _segment_of(self, index: int) -> int:
        """There are few segments: each is as large as all before it."""
        for segment, rows in enumerate(self.segments):
            if index < rows:
                return segment
            index -= rows
        raise BooksDisagree(_ASTRAY)


def must(holds: bool, what: str) -> None:
    """Not `assert`: it holds under `python -O` as well."""
    if not holds:
        raise BooksDisagree(what)


def _by_segment(size: SizeClass) -> list[int]:
    """The cold rows of each segment, counted one by one."""
    ends, counts = list(accumulate(size.segments)), [0] * len(size.segments)
    for index in size.cold:
        counts[bisect_right(ends, index)] += 1
    return counts


def capacities(context_length: int, first: int = FIRST_CAPACITY) -> tuple[int, ...]:
    """128, 256, 512, … up to the context, which is the last one."""
    sizes = []
    size = first
    while size < context_length:
        sizes.append(size)
        size *= 2
    return (*sizes, context_length)


class KvRows:
    """The accounting. `evicted` is called with each cold row that was evicted."""

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        token_bytes: int,
        budget_bytes: int,
        evicted: Callable[[CacheRow], None] = lambda slot: None,
    ) -> None:
        self._classes = {size: SizeClass(size, size * token_bytes) for size in sorted(sizes)}
        self._budget_bytes = budget_bytes
        self._evicted = evicted
        self._operations: list[Operation] = []
        self._cold: OrderedDict[CacheRow, None] = OrderedDict()
        self.num_left = 0
        """How often a hot row was left. While this is the same, what found no room finds none."""
        if max(sizes) * token_bytes > budget_bytes:
            raise ValueError("the budget holds no row of the largest class")

    @property
    def bytes_held(self) -> int:
        return sum(c.rows * c.row_bytes for c in self._classes.values())

    @property
    def bytes_hot(self) -> int:
        """In the rows of running sequences. Read from other threads too."""
        return sum(len(c.hot) * c.row_bytes for c in self._classes.values())

    @property
    def budget_bytes(self) -> int:
        return self._budget_bytes

    @property
    def largest(self) -> int:
        """Tokens that the longest row holds."""
        return max(self._classes)

    @property
    def num_hot(self) -> int:
        return sum(len(c.hot) for c in self._classes.values())

    @property
    def num_cold(self) -> int:
        return len(self._cold)

    @property
    def has_operations(self) -> bool:
        """Whether the tensors are behind."""
        return bool(self._operations)

    def drain(self) -> list[Operation]:
        """What the tensors must go through since the last call, in order."""
        operations, self._operations = self._operations, []
        return operations

    def take(self, length: int) -> CacheRow | None:
        """A hot row that holds `length` tokens, or None if even without any cold row there is no room."""
        wanted = self._class_for(length)
        if not self._make_room(wanted):
            return None
        index = len(wanted.hot)
        if (guest := wanted.cold.get(index)) is not None:
            self._move_cold(wanted, guest, wanted.free_index())
        slot = CacheRow(wanted.capacity, index)
        wanted.hot.append(slot)
        return slot

    def enlarge(self, slot: CacheRow, length: int) -> bool:
        """See that this hot row holds `length` tokens, moving it to a larger class if necessary. False: no room."""
        if length <= slot.capacity:
            return True
        larger = self.take(length)
        if larger is None:
            return False
        self._operations.append(Copy(slot.place, larger.place, slot.filled))
        self._leave_hot(slot)
        slot.capacity, slot.index = larger.capacity, larger.index
        self._classes[slot.capacity].hot[slot.index] = slot
        return True

    def copy(self, source: CacheRow, target: CacheRow, length: int) -> None:
        """The beginning of one row into another one."""
        assert source.alive
        assert length <= min(source.filled, target.capacity)
        self._operations.append(Copy(source.place, target.place, length))
        target.filled = length
        self.touch(source)

    def drop(self, slot: CacheRow, *, poisoned: bool = False) -> None:
        """A hot row is free again."""
        if poisoned:
            self._operations.append(Clear(slot.place))
        self._leave_hot(slot)
        slot.alive = False

    def keep(self, slot: CacheRow) -> bool:
        """A hot row becomes a cold one. False: there was no place for it, and it is dropped."""
        home = self._classes[slot.capacity]
        last = home.hot[-1]
        if slot is not last:
            if not home.free and not self._grow(home) and not self._evict_oldest(home.by_use):
                self.drop(slot)
                return False
            target = RowPlace(slot.capacity, home.free_index())
            self._operations.append(Copy(slot.place, target, slot.filled))
            self._leave_hot(slot)
            slot.index = target.index
        else:
            home.hot.pop()
            self.num_left += 1
        slot.hot = False
        home.put_cold(slot)
        self._cold[slot] = home.by_use[slot] = None
        return True

    def touch(self, slot: CacheRow) -> None:
        """Mark it as the most recently used."""
        if slot in self._cold:
            self._cold.move_to_end(slot)
            self._classes[slot.capacity].by_use.move_to_end(slot)

    def evict(self, slot: CacheRow) -> None:
        """A cold row is free again."""
        home = self._classes[slot.capacity]
        del self._cold[slot], home.by_use[slot]
        home.pop_cold(slot)
        slot.alive = False
        self._evicted(slot)

    def reset(self) -> None:
        """After a fault in the tensors: nothing is held any more, and no operation is left to do."""
        for slot in list(self._cold):
            self.evict(slot)
        for size in self._classes.values():
            for slot in size.hot:
                slot.alive = False
                self.num_left += 1
            size.hot.clear()
            while size.segments:
                size.trim()
        self._operations.clear()

    def check(self) -> None:
        """Every row is hot, cold or free, exactly once. Raises `BooksDisagree` otherwise."""
        cold = 0
        for size in self._classes.values():
            must([slot.index for slot in size.hot] == list(range(len(size.hot))), _ASTRAY)
            must(all(s.hot and s.alive and s.capacity == size.capacity for s in size.hot), _ASTRAY)
            must(all(s.index == index and not s.hot and s.alive for index, s in size.cold.items()), _ASTRAY)
            must(all(len(size.hot) <= index < size.rows for index in size.cold), _ASTRAY)
            must(len(size.hot) <= size.rows, "there are more hot rows than rows")
            must(len(size.by_use) == len(size.cold), _USE)
            must(size.num_cold_in == _by_segment(size), "cold rows are counted wrongly")
            cold += len(size.cold)
        must(cold == len(self._cold), _USE)
        used = {size.capacity: iter(size.by_use) for size in self._classes.values()}
        must(all(next(used[slot.capacity]) is slot for slot in self._cold), _USE)
        must(self.bytes_held <= self._budget_bytes, "the rows are larger than the budget")

    def _class_for(self, length: int) -> SizeClass:
        return next(c for c in self._classes.values() if c.capacity >= length)

    def _make_room(self, wanted: SizeClass) -> bool:
        """See that the class has a free row: grow, else give back idle segments, else evict the least recently used."""
        while not wanted.free and not self._grow(wanted):
            if self._trim_one(but=wanted):
                continue
            if not self._evict_oldest(wanted.by_use) and not self._evict_oldest(self._cold):
                return False
        return True

    def _grow(self, size: SizeClass) -> bool:
        affordable = (self._budget_bytes - self.bytes_held) // size.row_bytes
        rows = min(affordable, size.rows or self._first_rows(size))
        if rows < 1:
            return False
        size.grow(rows)
        self._operations.append(Grow(size.capacity, rows))
        return True

    def _first_rows(self, size: SizeClass) -> int:
        share = int(self._budget_bytes * FIRST_SEGMENT_SHARE) // size.row_bytes
        return max(FIRST_SEGMENT, min(FIRST_SEGMENT_TOKENS // size.capacity, share))

    def _trim_one(self, *, but: SizeClass) -> bool:
        for size in self._classes.values():
            if size is not but and size.tail_is_idle:
                size.trim()
                self._operations.append(Trim(size.capacity))
                return True
        return False

    def _evict_oldest(self, by_use: OrderedDict[CacheRow, None]) -> bool:
        oldest = next(iter(by_use), None)
        if oldest is not None:
            self.evict(oldest)
        return oldest is not None

    def _move_cold(self, size: SizeClass, slot: CacheRow, index: int) -> None:
        self._operations.append(Copy(slot.place, RowPlace(size.capacity, index), slot.filled))
        size.pop_cold(slot)
        slot.index = index
        size.put_cold(slot)

    def _leave_hot(self, slot: CacheRow) -> None:
        """The last hot row moves into the hole."""
        home = self._classes[slot.capacity]
        last = home.hot.pop()
        self.num_left += 1
        if last is slot:
            return
        self._operations.append(Copy(last.place, slot.place, last.filled))
        last.index = slot.index
        home.hot[last.index] = last

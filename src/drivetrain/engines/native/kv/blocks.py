"""Who holds which block of the KV cache, and which beginnings can be found there. No tensors here.

A block keeps the keys and values of some consecutive tokens of a sequence, in every layer of a group (`groups.py`). A
sequence has a table with a row of blocks for each group, and sequences that begin with the same ids hold the same ones.
A block that nobody holds waits for the next prompt that begins so, until somebody needs the room; those used longest
ago go first. In a group with a window, a sequence gives back what no later token of it sees.
"""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence

from drivetrain.engines.native.kv.books import check_group, must
from drivetrain.engines.native.kv.groups import GONE, Beginning, Block, BlockGroup, Window
from drivetrain.engines.native.kv.tables import BlockRow, BlockTable, Clear, Copy, Operation

BLOCK_TOKENS = 16
"""Of a beginning, so many tokens are shared or none; our own kernel takes as many keys without a further look-up."""


def most_blocks(length: int, window: Window, chunk: int, block_tokens: int = BLOCK_TOKENS) -> int:
    """The most blocks of a group that a sequence of this length holds at once, if a step computes `chunk` tokens."""
    whole = -(-length // block_tokens)
    return whole if window is None else min(whole, -(-(window + chunk) // block_tokens) + 1)


class BlockPool:
    """The accounting. What must happen to the tensors is written down, in order, for `drain`."""

    def __init__(
        self,
        sizes: int | Mapping[Window, int],
        *,
        block_tokens: int = BLOCK_TOKENS,
        shares: bool = True,
        chunk: int = sys.maxsize,
    ) -> None:
        """`sizes`: the blocks of each group, by its window; a number alone is of one group with full attention.

        `shares`: whether beginnings can be found. `chunk`: the most tokens of a sequence that a step computes.
        """
        windows: Mapping[Window, int] = {None: sizes} if isinstance(sizes, int) else sizes
        self.groups = [BlockGroup(index, window, windows[window]) for index, window in enumerate(windows)]
        self.block_tokens = block_tokens
        self.shares = shares
        self.chunk = chunk
        self.num_released = 0
        """How often blocks came back. While this is the same, what found no room finds none."""
        self.num_shared = 0
        """Blocks that several sequences hold."""
        self._sliding = [group for group in self.groups if group.window is not None]
        self._nothing = self._root()
        self._tables: set[BlockTable] = set()
        self._operations: list[Operation] = []

    @property
    def sizes(self) -> dict[Window, int]:
        return {group.window: group.num_blocks for group in self.groups}

    @property
    def longest(self) -> int:
        """The most tokens that a sequence can have."""
        limited = [group for group in self.groups if group.num_blocks < self._most_blocks(sys.maxsize, group)]
        return min((group.num_blocks for group in limited), default=sys.maxsize) * self.block_tokens

    @property
    def num_blocks(self) -> int:
        return sum(group.num_blocks for group in self.groups)

    @property
    def num_held(self) -> int:
        """Blocks in use. Read from other threads, like the next two."""
        return sum(group.num_held for group in self.groups)

    @property
    def num_idle(self) -> int:
        """Blocks kept for later prompts."""
        return sum(len(group.idle) for group in self.groups)

    @property
    def share_held(self) -> float:
        """Of the group that has the least left."""
        return max(group.num_held / group.num_blocks for group in self.groups)

    def blocks_for(self, length: int) -> int:
        return -(-length // self.block_tokens)

    def drain(self) -> list[Operation]:
        """What the tensors must go through since the last call, in order."""
        operations, self._operations = self._operations, []
        return operations

    def find(self, ids: Sequence[int], limit: int, salt: Hashable = None) -> list[Beginning]:
        """The longest beginning of at most `limit` ids that one can go on from, with all that stand before it.

        The caller does not hold their blocks yet.
        """
        found: list[Beginning] = []
        num_usable = 0
        missing: dict[int, int] = {}  # by group: how many blocks there are up to the last one that is lost
        last = self._nothing.after.get(salt)
        for end in range(self.block_tokens, limit + 1, self.block_tokens):
            last = last and last.after.get(tuple(ids[end - self.block_tokens : end]))
            if last is None:
                break
            found.append(last)
            if None in last.blocks:
                missing.update((index, len(found)) for index, block in enumerate(last.blocks) if block is None)
            if not missing or all(
                number <= self._num_behind(self.groups[index], end) for index, number in missing.items()
            ):
                num_usable = len(found)
        return found[:num_usable]

    def open(self, length: int, found: Sequence[Beginning] = (), salt: Hashable = None) -> BlockTable | None:
        """A table for `length` tokens that begins with the blocks of these; None if there is no room."""
        rows = [[one.blocks[group.index] for one in found] for group in self.groups]
        return self._opened(length, len(found) * self.block_tokens, rows, [self._nothing.then(salt), *found])

    def can_fork(self, table: BlockTable, start: int) -> bool:
        """Whether it still holds all that one needs to go on from its first `start` tokens."""
        return all(
            row.num_gone <= self._num_behind(group, start) for group, row in zip(self.groups, table.rows, strict=True)
        )

    def fork(self, table: BlockTable, start: int, length: int) -> BlockTable | None:
        """A table for `length` tokens that begins with the first `start` of this one; None if there is no room."""
        full, rest = divmod(start, self.block_tokens)
        rows = [row.blocks[:full] for row in table.rows]
        made = self._opened(length, start, rows, table.beginnings[: full + 1])
        if made is not None and rest:
            for index, (source, target) in enumerate(zip(table.rows, made.rows, strict=True)):
                self._operations.append(Copy(source.numbers[full], target.numbers[full], index))
        return made

    def enlarge(self, table: BlockTable, length: int) -> bool:
        """See that it holds `length` tokens: of a group with a window, those that a step from `filled` on may need.

        What is behind the window goes back. False: there is no room, and no block was taken.
        """
        for group in self._sliding:
            self._give_back(group, table)
        missing = [
            (group, row, number)
            for group, row in zip(self.groups, table.rows, strict=True)
            if (number := self._num_needed(group, table.filled, length) - len(row.blocks)) > 0
        ]
        if any(number > group.num_available for group, _, number in missing):
            return False
        for group, row, number in missing:
            self._add(group, row, [group.take() for _ in range(number)])
        return True

    def fits(self, length: int, released: Sequence[BlockTable]) -> bool:
        """Whether there would be room to open a table if these were released."""
        for group in self.groups:
            rows = [table.rows[group.index] for table in released]
            held = Counter(block for row in rows for block in row.blocks[row.num_gone :])
            theirs = sum(block.num_holders == number for block, number in held.items())
            if self._num_needed(group, 0, length) > group.num_available + theirs:
                return False
        return True

    def fill(self, table: BlockTable, ids: Sequence[int], filled: int) -> None:
        """Its first tokens are these ids, `filled` of them computed. Full blocks can be found from here on."""
        table.filled = filled
        num_full = filled // self.block_tokens if self.shares else 0
        for index in range(len(table.beginnings) - 1, num_full):
            blocks = [row.blocks[index] for row in table.rows]
            if any(block.poisoned for block in blocks):
                break
            last = table.beginnings[-1].then(tuple(ids[index * self.block_tokens : (index + 1) * self.block_tokens]))
            for group, block in enumerate(blocks):
                if last.blocks[group] is None:
                    last.blocks[group], block.beginning = block, last
            last.num_tables += 1
            table.beginnings[-1].num_tables -= 1
            table.beginnings.append(last)

    def release(self, table: BlockTable, *, poisoned: bool = False) -> None:
        """Nobody uses the table from here on. `poisoned`: nor anybody what it has computed."""
        table.alive = False
        self._tables.remove(table)
        self.num_released += 1
        if poisoned:
            self._poison(table)
        for group, row in zip(self.groups, table.rows, strict=True):
            for block in reversed(row.blocks[row.num_gone :]):
                self._leave(group, block)
        table.beginnings[-1].num_tables -= 1
        table.beginnings[-1].prune()
        table.rows.clear()
        table.beginnings.clear()

    def reset(self) -> None:
        """After a fault in the tensors: no table is alive, nothing can be found, and all that was used is cleared."""
        for table in self._tables:
            table.alive = False
        self._tables.clear()
        self._nothing = self._root()
        for group in self.groups:
            group.reset()
        self._operations = [Clear(block.number, group.index) for group in self.groups for block in group.made]
        self.num_released += 1
        self.num_shared = 0

    def check(self, tables: Iterable[BlockTable]) -> None:
        """These are all tables in use, and every block is held as often as they say, idle, or free.

        Raises `BooksDisagree` otherwise.
        """
        must(set(tables) == self._tables, "a table is nobody's, or was released in use")
        must(all(table.alive for table in self._tables), "a table in use was released")
        known = list(self._nothing.descendants())
        num_shared = 0
        for group in self.groups:
            rows = [table.rows[group.index] for table in self._tables]
            num_shared += check_group(group, rows)
            for table, row in zip(self._tables, rows, strict=True):
                must(table.filled <= len(row.blocks) * self.block_tokens, "a table has more tokens than room")
                must(row.num_gone <= self._num_behind(group, table.filled), "a table gave back what it needs")
            found = {one.blocks[group.index]: one for one in known if one.blocks[group.index] is not None}
            must(
                found == {block: block.beginning for block in group.made if block.beginning}, "names and blocks differ"
            )
        must(self.num_shared == num_shared, "shared blocks are counted wrongly")
        ends = Counter(table.beginnings[-1] for table in self._tables)
        must(all(one.is_needed and one.num_tables == ends[one] for one in known), "a beginning is nobody's")

    def _root(self) -> Beginning:
        return Beginning(None, None, [None] * len(self.groups))

    def _most_blocks(self, length: int, group: BlockGroup) -> int:
        return most_blocks(length, group.window, self.chunk, self.block_tokens)

    def _num_behind(self, group: BlockGroup, position: int) -> int:
        """How many of the first blocks a step from this position does not read."""
        return 0 if group.window is None else max(0, position + 1 - group.window) // self.block_tokens

    def _num_needed(self, group: BlockGroup, start: int, length: int) -> int:
        """For a step from `start` on, those that are gone included."""
        end = length if group.window is None else min(length, start + self.chunk)
        return -(-end // self.block_tokens)

    def _opened(
        self, length: int, start: int, rows: Sequence[Sequence[Block | None]], beginnings: list[Beginning]
    ) -> BlockTable | None:
        table = BlockTable([], beginnings, filled=start, num_shared=start // self.block_tokens)
        self._tables.add(table)
        beginnings[-1].num_tables += 1
        for group, blocks in zip(self.groups, rows, strict=True):
            num_gone = self._num_behind(group, start)
            row = BlockRow([GONE] * num_gone, array("q", [GONE.number] * num_gone), num_gone)
            table.rows.append(row)
            self._add(group, row, [block for block in blocks[num_gone:] if block is not None])
        if not self.enlarge(table, length):
            self.release(table)
            return None
        return table

    def _add(self, group: BlockGroup, row: BlockRow, blocks: Sequence[Block]) -> None:
        for block in blocks:
            block.num_holders += 1
            self.num_shared += block.num_holders == 2
            group.idle.pop(block, None)
        row.blocks += blocks
        row.numbers.extend(block.number for block in blocks)

    def _give_back(self, group: BlockGroup, table: BlockTable) -> None:
        """What is behind the window, counted from one position before: a request's other choices begin there."""
        row = table.rows[group.index]
        for index in range(row.num_gone, self._num_behind(group, table.filled - 1)):
            self._leave(group, row.blocks[index])
            self.num_released += 1
            row.blocks[index], row.numbers[index] = GONE, GONE.number
            row.num_gone = index + 1

    def _leave(self, group: BlockGroup, block: Block) -> None:
        block.num_holders -= 1
        self.num_shared -= block.num_holders == 1
        if not block.num_holders:
            self._put_back(group, block)

    def _put_back(self, group: BlockGroup, block: Block) -> None:
        if block.poisoned:
            block.poisoned = False
            self._operations.append(Clear(block.number, group.index))
        group.put_back(block)

    def _poison(self, table: BlockTable) -> None:
        """What it has computed. Of what it gave back, all that can be found: it may have computed that too."""
        for group, row in zip(self.groups, table.rows, strict=True):
            found = [one.blocks[group.index] for one in table.beginnings[table.num_shared + 1 : row.num_gone + 1]]
            for block in (*row.blocks[max(table.num_shared, row.num_gone) :], *found):
                if block is not None:
                    block.poisoned = True
                    group.forget(block)
                    if not block.num_holders:
                        del group.idle[block]
                        self._put_back(group, block)

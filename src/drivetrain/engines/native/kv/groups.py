"""The blocks of a group of layers, and the beginnings by which blocks are found. No tensors here.

Layers that see equally far back need the same tokens, so they share their blocks' numbers: layers with full attention
are one group, those with a window of some size are another one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

Window = int | None
"""How many tokens a group of layers sees, the newest included. None: all."""


@dataclass(slots=True, eq=False)
class Block:
    number: int
    """Its place in the tensors of its group."""
    num_holders: int = 0
    beginning: Beginning | None = None
    """That ends with this block. None: it cannot be found."""
    poisoned: bool = False
    """Whether NaN may be in it, which would outlast any mask."""


GONE = Block(-1, poisoned=True)
"""Stands in a table for a block that went back because it is behind the window."""


@dataclass(slots=True, eq=False)
class Beginning:
    """All ids up to the end of a full block. Beginnings are a tree, so equal ids are one and nothing can collide.

    It is known while somebody needs it: a block, a table, or a longer beginning.
    """

    before: Beginning | None
    """None: of the one that stands before every salt."""
    ids: Hashable
    """Of its last block; the salt, where no ids stand before."""
    blocks: list[Block | None]
    """Those with its last ids, one a group. A group with a window may have lost its own and still have later ones."""
    after: dict[Hashable, Beginning] = field(default_factory=dict)
    num_tables: int = 0
    """Tables whose named blocks end here."""

    def then(self, ids: Hashable) -> Beginning:
        """The same with these ids behind it."""
        found = self.after.get(ids)
        if found is None:
            found = self.after[ids] = Beginning(self, ids, [None] * len(self.blocks))
        return found

    @property
    def is_needed(self) -> bool:
        return bool(self.after) or self.num_tables > 0 or any(self.blocks)

    def prune(self) -> None:
        """Forget it if nobody needs it any longer, and what stands before it likewise."""
        last = self
        while last.before is not None and not last.is_needed:
            del last.before.after[last.ids]
            last = last.before

    def descendants(self) -> Iterator[Beginning]:
        """All that are known and begin so."""
        left = list(self.after.values())
        while left:
            yield (one := left.pop())
            left += one.after.values()


class BlockGroup:
    """Which blocks of a group are free, and which nobody holds but a later prompt may find."""

    def __init__(self, index: int, window: Window, num_blocks: int) -> None:
        """`index`: its place among the groups."""
        if num_blocks < 1:
            raise ValueError("the budget holds no block")
        self.index = index
        self.window = window
        self.num_blocks = num_blocks
        self.made: list[Block] = []
        self.free: list[Block] = []
        self.idle: OrderedDict[Block, None] = OrderedDict()
        """Least recently used first: an end before what stands before it."""

    @property
    def num_held(self) -> int:
        """Blocks in use. Read from other threads."""
        return len(self.made) - len(self.free) - len(self.idle)

    @property
    def num_available(self) -> int:
        return self.num_blocks - self.num_held

    def take(self) -> Block:
        """One that was used before, since its memory is there; else a new one; else the least recently used."""
        if self.free:
            return self.free.pop()
        if len(self.made) < self.num_blocks:
            block = Block(len(self.made))
            self.made.append(block)
            return block
        block, _ = self.idle.popitem(last=False)
        self.forget(block)
        return block

    def put_back(self, block: Block) -> None:
        """Nobody holds it any longer."""
        if block.beginning is None:
            self.free.append(block)
        else:
            self.idle[block] = None

    def forget(self, block: Block) -> None:
        """It cannot be found from here on."""
        beginning, block.beginning = block.beginning, None
        if beginning is not None:
            beginning.blocks[self.index] = None
            beginning.prune()

    def reset(self) -> None:
        """All blocks are free and were never found."""
        self.made = [Block(number) for number in range(len(self.made))]
        self.free = self.made[::-1]
        self.idle.clear()


def common(a: Sequence[int], b: Sequence[int], limit: int) -> int:
    """How many ids, at most `limit`, both begin with."""
    most = min(len(a), len(b), limit)
    return next((i for i in range(most) if a[i] != b[i]), most)

"""Who holds which block of the KV cache, and which beginnings can be found there. No tensors here.

A block keeps the keys and values of some consecutive tokens of a sequence, in every layer. A sequence has a table of
blocks, and sequences that begin with the same ids hold the same ones. A block that nobody holds waits for the next
prompt that begins so, until somebody needs the room; those used longest ago go first.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count

BLOCK_TOKENS = 16
"""Of a beginning, so many tokens are shared or none; our own kernel takes as many keys without a further look-up."""


class BooksDisagree(Exception):
    """The accounting contradicts itself: a defect of ours."""


def must(holds: bool, what: str) -> None:
    """Not `assert`: it holds under `python -O` as well."""
    if not holds:
        raise BooksDisagree(what)


Name = tuple[Hashable, tuple[int, ...]]
"""What stands before the block, as its number among all beginnings, and the block's ids. Exact: no hash may collide."""


@dataclass(slots=True, eq=False)
class Block:
    number: int
    """Its place in the tensors."""
    num_holders: int = 0
    name: Name | None = None
    """None: it cannot be found."""
    beginning: int = 0
    """Stands for all ids up to its end; only a block with a name has one."""
    poisoned: bool = False
    """Whether NaN may be in it, which would outlast any mask."""


@dataclass(slots=True, eq=False)
class BlockTable:
    """The blocks of one sequence, in order. `filled` tokens of them are valid: whoever computes them says so."""

    blocks: list[Block] = field(default_factory=list)
    numbers: array[int] = field(default_factory=lambda: array("q"))
    """Of these blocks."""
    filled: int = 0
    num_shared: int = 0
    """The first blocks, which somebody else has computed."""
    num_named: int = 0
    """The first blocks, whose ids can be found: here, or where somebody else computed the same."""
    beginning: Hashable = None
    """Up to the end of the last one of these."""
    alive: bool = True


@dataclass(frozen=True, slots=True)
class Copy:
    """The whole of one block into another one."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Clear:
    """The block held NaN: write zeros, for backends that read whole blocks."""

    block: int


Operation = Copy | Clear


class BlockPool:
    """The accounting. What must happen to the tensors is written down, in order, for `drain`."""

    def __init__(self, num_blocks: int, *, block_tokens: int = BLOCK_TOKENS, shares: bool = True) -> None:
        """`shares`: whether beginnings can be found."""
        if num_blocks < 1:
            raise ValueError("the budget holds no block")
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self.shares = shares
        self.num_released = 0
        """How often a table was released. While this is the same, what found no room finds none."""
        self.num_shared = 0
        """Blocks that several sequences hold."""
        self._made: list[Block] = []
        self._free: list[Block] = []
        self._idle: OrderedDict[Block, None] = OrderedDict()
        """Named and held by nobody, least recently used first: an end before what stands before it."""
        self._named: dict[Name, Block] = {}
        self._beginnings = count()
        self._tables: set[BlockTable] = set()
        self._operations: list[Operation] = []

    @property
    def num_tokens(self) -> int:
        """That all blocks together hold."""
        return self.num_blocks * self.block_tokens

    @property
    def num_held(self) -> int:
        """Blocks in use. Read from other threads, like the next one."""
        return len(self._made) - len(self._free) - len(self._idle)

    @property
    def num_idle(self) -> int:
        """Blocks kept for later prompts."""
        return len(self._idle)

    @property
    def num_available(self) -> int:
        return self.num_blocks - self.num_held

    def blocks_for(self, length: int) -> int:
        return -(-length // self.block_tokens)

    def drain(self) -> list[Operation]:
        """What the tensors must go through since the last call, in order."""
        operations, self._operations = self._operations, []
        return operations

    def find(self, ids: Sequence[int], limit: int, salt: Hashable = None) -> list[Block]:
        """The blocks of the longest known beginning of at most `limit` ids. Nobody holds them for that."""
        found: list[Block] = []
        before: Hashable = _root(salt)
        for end in range(self.block_tokens, limit + 1, self.block_tokens):
            block = self._named.get((before, tuple(ids[end - self.block_tokens : end])))
            if block is None:
                break
            found.append(block)
            before = block.beginning
        return found

    def open(self, length: int, shared: Sequence[Block] = (), salt: Hashable = None) -> BlockTable | None:
        """A table that holds `length` tokens and begins with these blocks; None if there is no room."""
        table = BlockTable(beginning=_root(salt))
        self._tables.add(table)
        self._add(table, shared)
        table.num_shared = len(shared)
        table.filled = len(shared) * self.block_tokens
        for block in shared:
            if block.name is None:
                break
            table.num_named += 1
            table.beginning = block.beginning
        if not self.enlarge(table, length):
            self.release(table)
            return None
        return table

    def enlarge(self, table: BlockTable, length: int) -> bool:
        """See that it holds `length` tokens. False: there is no room, and nothing changed."""
        missing = self.blocks_for(length) - len(table.blocks)
        if missing > self.num_available:
            return False
        self._add(table, [self._take() for _ in range(missing)])
        return True

    def copy(self, source: Block, target: Block) -> None:
        self._operations.append(Copy(source.number, target.number))

    def fill(self, table: BlockTable, ids: Sequence[int], filled: int) -> None:
        """Its first tokens are these ids, `filled` of them computed. Full blocks can be found from here on."""
        table.filled = filled
        for index in range(table.num_named, filled // self.block_tokens if self.shares else 0):
            name = (table.beginning, tuple(ids[index * self.block_tokens : (index + 1) * self.block_tokens]))
            block = self._named.get(name)
            if block is None:
                block = table.blocks[index]
                if block.poisoned:
                    break
                if block.name is None:
                    block.beginning = next(self._beginnings)
                else:  # it was found behind another block of the same ids, which is gone
                    self._forget(block)
                block.name = name
                self._named[name] = block
            table.beginning = block.beginning
            table.num_named = index + 1

    def release(self, table: BlockTable, *, poisoned: bool = False) -> None:
        """Nobody uses the table from here on. `poisoned`: nor anybody what it has computed."""
        table.alive = False
        self._tables.remove(table)
        self.num_released += 1
        for index in reversed(range(len(table.blocks))):
            block = table.blocks[index]
            if poisoned and index >= table.num_shared:
                block.poisoned = True
                self._forget(block)
            block.num_holders -= 1
            self.num_shared -= block.num_holders == 1
            if not block.num_holders:
                self._put_back(block)
        table.blocks.clear()
        del table.numbers[:]

    def reset(self) -> None:
        """After a fault in the tensors: no table is alive, nothing can be found, and all that was used is cleared."""
        for table in self._tables:
            table.alive = False
        self._tables.clear()
        self._idle.clear()
        self._named.clear()
        self._made = [Block(number) for number in range(len(self._made))]
        self._free = self._made[::-1]
        self._operations = [Clear(block.number) for block in self._made]
        self.num_released += 1
        self.num_shared = 0

    def check(self, tables: Iterable[BlockTable]) -> None:
        """These are all tables in use, and every block is held as often as they say, idle, or free.

        Raises `BooksDisagree` otherwise.
        """
        must(set(tables) == self._tables, "a table is nobody's, or was released in use")
        holders = Counter(block for table in self._tables for block in table.blocks)
        for table in self._tables:
            must(table.alive, "a table in use was released")
            must(len(set(table.blocks)) == len(table.blocks), "a table has a block twice")
            must([block.number for block in table.blocks] == list(table.numbers), "a table's numbers are others")
            must(table.filled <= len(table.blocks) * self.block_tokens, "a table has more tokens than room")
        must(self.num_shared == sum(number > 1 for number in holders.values()), "shared blocks are counted wrongly")
        must(all(block.num_holders == number for block, number in holders.items()), "a block has other holders")
        parts = [set(holders), set(self._idle), set(self._free)]
        must(sum(map(len, parts)) == len(set().union(*parts)) == len(self._made), "a block is lost or in two places")
        must(len(self._free) == len(parts[2]), "a block is free twice")
        must(len(self._made) <= self.num_blocks, "there are more blocks than the budget has")
        must(not any(block.num_holders for block in (*self._idle, *self._free)), "a block in use is free")
        must(not any(block.name or block.poisoned for block in self._free), "a free block has a name")
        must(all(block.name for block in self._idle), "a block is kept that nobody can find")
        named = {block.name: block for block in self._made if block.name is not None}
        must(named == self._named, "names and blocks differ")

    def _add(self, table: BlockTable, blocks: Sequence[Block]) -> None:
        for block in blocks:
            block.num_holders += 1
            self.num_shared += block.num_holders == 2
            self._idle.pop(block, None)
        table.blocks += blocks
        table.numbers.extend(block.number for block in blocks)

    def _take(self) -> Block:
        """One that was used before, since its memory is there; else a new one; else the least recently used."""
        if self._free:
            return self._free.pop()
        if len(self._made) < self.num_blocks:
            block = Block(len(self._made))
            self._made.append(block)
            return block
        block, _ = self._idle.popitem(last=False)
        self._forget(block)
        return block

    def _put_back(self, block: Block) -> None:
        if block.poisoned:
            block.poisoned = False
            self._operations.append(Clear(block.number))
        if block.name is None:
            self._free.append(block)
        else:
            self._idle[block] = None

    def _forget(self, block: Block) -> None:
        if block.name is not None:
            del self._named[block.name]
            block.name = None


def _root(salt: Hashable) -> Hashable:
    return ("salt", salt)


def common(a: Sequence[int], b: Sequence[int], limit: int) -> int:
    """How many ids, at most `limit`, both begin with."""
    most = min(len(a), len(b), limit)
    return next((i for i in range(most) if a[i] != b[i]), most)

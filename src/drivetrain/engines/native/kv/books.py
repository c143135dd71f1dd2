"""Whether the accounting of the KV cache agrees with itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from drivetrain.engines.native.kv.groups import GONE, BlockGroup
from drivetrain.engines.native.kv.tables import BlockRow


class BooksDisagree(Exception):
    """The accounting contradicts itself: a defect of ours."""


def must(holds: bool, what: str) -> None:
    """Not `assert`: it holds under `python -O` as well."""
    if not holds:
        raise BooksDisagree(what)


def check_group(group: BlockGroup, rows: Sequence[BlockRow]) -> int:
    """How many blocks several rows hold."""
    for row in rows:
        held = row.blocks[row.num_gone :]
        must(len(set(held)) == len(held), "a table has a block twice")
        must([block.number for block in row.blocks] == list(row.numbers), "a table's numbers are others")
        must(all(block is GONE for block in row.blocks[: row.num_gone]), "a table holds what is behind its window")
    holders = Counter(block for row in rows for block in row.blocks[row.num_gone :])
    must(all(block.num_holders == number for block, number in holders.items()), "a block has other holders")
    parts = [set(holders), set(group.idle), set(group.free)]
    must(sum(map(len, parts)) == len(set().union(*parts)) == len(group.made), "a block is lost or in two places")
    must(len(group.free) == len(parts[2]), "a block is free twice")
    must(len(group.made) <= group.num_blocks, "there are more blocks than the budget has")
    must(not any(block.num_holders for block in (*group.idle, *group.free)), "a block in use is free")
    must(not any(block.beginning or block.poisoned for block in group.free), "a free block has a name")
    must(all(block.beginning for block in group.idle), "a block is kept that nobody can find")
    return sum(number > 1 for number in holders.values())

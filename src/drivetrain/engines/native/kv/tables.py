"""The blocks of one sequence, and what must happen to tensors for the accounting to be true. No tensors here."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from drivetrain.engines.native.kv.groups import Beginning, Block


@dataclass(slots=True, eq=False)
class BlockRow:
    """The blocks of one sequence in one group, in order."""

    blocks: list[Block] = field(default_factory=list)
    numbers: array[int] = field(default_factory=lambda: array("q"))
    """Of these blocks."""
    num_gone: int = 0
    """The first ones, which are behind the window. Nothing may look for them in the tensors."""


@dataclass(slots=True, eq=False)
class BlockTable:
    """The blocks of one sequence, by group. `filled` tokens are valid: whoever computes them says so.

    The next step goes on there, so what is behind the window of that position is not needed any more.
    """

    rows: list[BlockRow]
    beginnings: list[Beginning]
    """That its first blocks stand for: the empty one, then one more for each block that can be found, here or where
    somebody else computed the same."""
    filled: int = 0
    num_shared: int = 0
    """The first blocks, which somebody else has computed."""
    alive: bool = True


@dataclass(frozen=True, slots=True)
class Copy:
    """The whole of one block into another one."""

    source: int
    target: int
    group: int = 0


@dataclass(frozen=True, slots=True)
class Clear:
    """The block held NaN: write zeros, for backends that read whole blocks."""

    block: int
    group: int = 0


Operation = Copy | Clear

"""What the tensors of the KV cache would hold, as lists: for tests of the accounting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drivetrain.engines.native.kv.blocks import BlockPool
from drivetrain.engines.native.kv.tables import BlockTable, Clear, Copy


class BlockMemory:
    """Does the operations as the cache does. None: nothing was written there."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._places: list[list[Any]] = [[None] * group.num_blocks * pool.block_tokens for group in pool.groups]
        self.num_copied = 0

    def catch_up(self) -> None:
        for operation in self._pool.drain():
            places = self._places[operation.group]
            match operation:
                case Copy(source, target):
                    places[self._block(target)] = places[self._block(source)]
                    self.num_copied += 1
                case Clear(block):
                    places[self._block(block)] = [None] * self._pool.block_tokens

    def hold(self, table: BlockTable, told: Sequence[Any]) -> None:
        """That a step behind these finds them: all of them, or in a window what it sees."""
        for index, group in enumerate(self._pool.groups):
            lowest = 0 if group.window is None else max(0, len(told) + 1 - group.window)
            places = [self._place(table, index, position) for position in range(lowest, len(told))]
            assert [self._places[index][place] for place in places] == list(told[lowest:])

    def write(self, table: BlockTable, start: int, values: Sequence[Any]) -> None:
        """As a forward pass does. What others can read must not change."""
        for index, row in enumerate(table.rows):
            for position, value in enumerate(values, start):
                block = row.blocks[position // self._pool.block_tokens]
                assert block.num_holders == 1, "somebody else holds it"
                self._places[index][self._place(table, index, position)] = value

    def _block(self, number: int) -> slice:
        return slice(number * self._pool.block_tokens, (number + 1) * self._pool.block_tokens)

    def _place(self, table: BlockTable, group: int, position: int) -> int:
        index, rest = divmod(position, self._pool.block_tokens)
        assert table.alive
        assert index >= table.rows[group].num_gone, "it has given that back"
        return table.rows[group].numbers[index] * self._pool.block_tokens + rest

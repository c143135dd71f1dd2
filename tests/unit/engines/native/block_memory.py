"""What the tensors of the KV cache would hold, as a list: for tests of the accounting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drivetrain.engines.native.kv.blocks import BlockPool, BlockTable, Clear, Copy


class BlockMemory:
    """Does the operations as the cache does. None: nothing was written there."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._places: list[Any] = [None] * pool.num_tokens
        self.num_copied = 0

    def catch_up(self) -> None:
        for operation in self._pool.drain():
            match operation:
                case Copy(source, target):
                    self._places[self._block(target)] = self._places[self._block(source)]
                    self.num_copied += 1
                case Clear(block):
                    self._places[self._block(block)] = [None] * self._pool.block_tokens

    def read(self, table: BlockTable, length: int) -> list[Any]:
        return [self._places[self._place(table, position)] for position in range(length)]

    def write(self, table: BlockTable, start: int, values: Sequence[Any]) -> None:
        """As a forward pass does. What others can read must not change."""
        for position, value in enumerate(values, start):
            block = table.blocks[position // self._pool.block_tokens]
            assert block.num_holders == 1, "somebody else holds it"
            self._places[self._place(table, position)] = value

    def _block(self, number: int) -> slice:
        return slice(number * self._pool.block_tokens, (number + 1) * self._pool.block_tokens)

    def _place(self, table: BlockTable, position: int) -> int:
        index, rest = divmod(position, self._pool.block_tokens)
        assert table.alive
        return table.numbers[index] * self._pool.block_tokens + rest

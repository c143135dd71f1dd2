"""The tensors behind the blocks of `blocks.py`: for each layer one of keys and one of values."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from drivetrain.engines.native import pages
from drivetrain.engines.native.kv.blocks import BLOCK_TOKENS
from drivetrain.engines.native.kv.groups import Window
from drivetrain.engines.native.kv.tables import Clear, Copy, Operation


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The shape of one token in one layer."""

    heads: int
    kv_heads: int
    key_size: int
    value_size: int

    @property
    def attended(self) -> int:
        """Multiplications of one token with one position before it."""
        return self.heads * (self.key_size + self.value_size)

    @property
    def cached(self) -> int:
        """Numbers kept for one token."""
        return self.kv_heads * (self.key_size + self.value_size)

    def token_bytes(self, dtype: Any) -> int:
        return int(self.cached * dtype.itemsize)


def block_bytes(layers: Mapping[int, LayerShape], windows: Mapping[int, Window], dtype: Any) -> dict[Window, int]:
    """For each group of layers, full attention first: what a block takes in all of them."""
    sizes: dict[Window, int] = {None: 0} if None in windows.values() else {}
    for layer, shape in layers.items():
        sizes[windows[layer]] = sizes.get(windows[layer], 0) + shape.token_bytes(dtype) * BLOCK_TOKENS
    return sizes


class KvCache:
    """`keys[layer]` is `[kv_heads, places, key_size]`; token t of block b is at place `b * block_tokens + t`.

    What is not filled yet is zero, because NaN there would outlast the mask.
    """

    def __init__(
        self,
        layers: Mapping[int, LayerShape],
        sizes: int | Mapping[Window, int],
        *,
        windows: Mapping[int, Window] | None = None,
        dtype: Any,
        device: Any,
        block_tokens: int = BLOCK_TOKENS,
    ) -> None:
        """`sizes`: as for the pool. `windows`: of each layer; None: all layers are one group with full attention."""
        self.block_tokens = block_tokens
        self.windows: list[Window] = [None] if isinstance(sizes, int) else list(sizes)
        """Of each group, in the order of a table's rows."""
        self.group_of = {layer: self.windows.index(windows[layer] if windows else None) for layer in layers}
        self._dtype = dtype
        self._device = device
        num_blocks = [sizes] if isinstance(sizes, int) else list(sizes.values())
        num_places = {layer: num_blocks[group] * block_tokens for layer, group in self.group_of.items()}
        self.keys = {layer: self._zeros(s.kv_heads, num_places[layer], s.key_size) for layer, s in layers.items()}
        self.values = {layer: self._zeros(s.kv_heads, num_places[layer], s.value_size) for layer, s in layers.items()}

    def apply(self, operations: Sequence[Operation]) -> None:
        """In order."""
        for operation in operations:
            for tensor in self._tensors(operation.group):
                match operation:
                    case Copy(source, target):
                        tensor[:, self._places(target)] = tensor[:, self._places(source)]
                    case Clear(block):
                        tensor[:, self._places(block)] = 0

    def _places(self, block: int) -> slice:
        return slice(block * self.block_tokens, (block + 1) * self.block_tokens)

    def _tensors(self, group: int) -> Iterator[Any]:
        for layer, its_group in self.group_of.items():
            if its_group == group:
                yield self.keys[layer]
                yield self.values[layer]

    def _zeros(self, *shape: int) -> Any:
        """On a CPU, pages that the system provides as they are written: the budget is no memory in use."""
        if self._device.type != "cpu" or not hasattr(mmap, "MAP_PRIVATE"):
            return torch.zeros(shape, dtype=self._dtype, device=self._device)
        return torch.frombuffer(pages.zeroed(prod(shape) * self._dtype.itemsize), dtype=self._dtype).view(shape)

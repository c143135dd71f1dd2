"""The tensors behind the blocks of `blocks.py`: for each layer one of keys and one of values."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from drivetrain.engines.native.kv.blocks import BLOCK_TOKENS, Clear, Copy, Operation


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


def token_bytes(layers: Mapping[int, LayerShape], dtype: Any) -> int:
    """Of one token in all layers."""
    return sum(shape.token_bytes(dtype) for shape in layers.values())


class KvCache:
    """`keys[layer]` is `[kv_heads, places, key_size]`; token t of block b is at place `b * block_tokens + t`.

    What is not filled yet is zero, because NaN there would outlast the mask.
    """

    def __init__(
        self,
        layers: Mapping[int, LayerShape],
        num_blocks: int,
        *,
        dtype: Any,
        device: Any,
        block_tokens: int = BLOCK_TOKENS,
    ) -> None:
        self.block_tokens = block_tokens
        self.num_places = num_blocks * block_tokens
        self._dtype = dtype
        self._device = device
        self.keys = {layer: self._zeros(s.kv_heads, self.num_places, s.key_size) for layer, s in layers.items()}
        self.values = {layer: self._zeros(s.kv_heads, self.num_places, s.value_size) for layer, s in layers.items()}

    def apply(self, operations: Sequence[Operation]) -> None:
        """In order."""
        for operation in operations:
            match operation:
                case Copy(source, target):
                    for tensor in self._tensors():
                        tensor[:, self._places(target)] = tensor[:, self._places(source)]
                case Clear(block):
                    for tensor in self._tensors():
                        tensor[:, self._places(block)] = 0

    def _places(self, block: int) -> slice:
        return slice(block * self.block_tokens, (block + 1) * self.block_tokens)

    def _tensors(self) -> Iterator[Any]:
        yield from self.keys.values()
        yield from self.values.values()

    def _zeros(self, *shape: int) -> Any:
        """On a CPU, pages that the system provides as they are written: the budget is no memory in use."""
        if self._device.type != "cpu" or not hasattr(mmap, "MAP_PRIVATE"):
            return torch.zeros(shape, dtype=self._dtype, device=self._device)
        pages = mmap.mmap(-1, prod(shape) * self._dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return torch.frombuffer(pages, dtype=self._dtype).view(shape)

"""The tensors behind the rows of `rows.py`: for each layer and segment one block of keys and one of values."""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from drivetrain.engines.native.kv.rows import Clear, Copy, Grow, Operation, RowPlace, Trim


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


@dataclass(slots=True, eq=False)
class RowSegment:
    """`keys[layer]` is `[rows, kv_heads, capacity, key_size]`; `first` is the index of its first row in its class."""

    capacity: int
    first: int
    rows: int
    keys: dict[int, Any]
    values: dict[int, Any]


class KvCache:
    """Does what the accounting wrote down. What is not filled yet is zero, because NaN there would outlast the mask."""

    def __init__(self, layers: Mapping[int, LayerShape], *, dtype: Any, device: Any) -> None:
        self._layers = dict(layers)
        self._dtype = dtype
        self._device = device
        self._segments: dict[int, list[RowSegment]] = {}

    @property
    def token_bytes(self) -> int:
        """Of one token in all layers."""
        return sum(shape.token_bytes(self._dtype) for shape in self._layers.values())

    @property
    def bytes_held(self) -> int:
        return sum(s.rows * s.capacity for group in self._segments.values() for s in group) * self.token_bytes

    def apply(self, operations: Sequence[Operation]) -> None:
        """In order. If this raises, the accounting and the tensors no longer agree: reset both."""
        for operation in operations:
            match operation:
                case Grow(capacity, rows):
                    self._grow(capacity, rows)
                case Trim(capacity):
                    self._segments[capacity].pop()
                case Copy(source, target, length):
                    self._copy(source, target, length)
                case Clear(place):
                    segment, row = self.locate(place)
                    for block in (*segment.keys.values(), *segment.values.values()):
                        block[row].zero_()

    def reset(self) -> None:
        self._segments.clear()

    def locate(self, place: RowPlace) -> tuple[RowSegment, int]:
        """The segment of a row, and the row's number in it."""
        for segment in reversed(self._segments[place.capacity]):
            if place.index >= segment.first:
                return segment, place.index - segment.first
        raise AssertionError("no such row")

    def _grow(self, capacity: int, rows: int) -> None:
        group = self._segments.setdefault(capacity, [])
        first = group[-1].first + group[-1].rows if group else 0
        group.append(
            RowSegment(
                capacity,
                first,
                rows,
                {layer: self._block(rows, s.kv_heads, capacity, s.key_size) for layer, s in self._layers.items()},
                {layer: self._block(rows, s.kv_heads, capacity, s.value_size) for layer, s in self._layers.items()},
            )
        )

    def _block(self, *shape: int) -> Any:
        """On a CPU, pages that the system provides as they are written: to zero gigabytes would hold up a step."""
        if self._device.type != "cpu" or not hasattr(mmap, "MAP_PRIVATE"):
            return torch.zeros(shape, dtype=self._dtype, device=self._device)
        pages = mmap.mmap(-1, prod(shape) * self._dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return torch.frombuffer(pages, dtype=self._dtype).view(shape)

    def _copy(self, source: RowPlace, target: RowPlace, length: int) -> None:
        here, i = self.locate(source)
        there, j = self.locate(target)
        for layer in self._layers:
            there.keys[layer][j, :, :length] = here.keys[layer][i, :, :length]
            there.values[layer][j, :, :length] = here.values[layer][i, :, :length]

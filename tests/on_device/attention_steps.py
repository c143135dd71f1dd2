"""One step of attention, the same for each backend. What no piece covers is NaN in its cache: nothing may read it."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from drivetrain.engines.native.attention.backend import (  # noqa: E402
    AttentionSpec,
    Layer,
    MakeAttention,
    Piece,
)
from drivetrain.engines.native.kv.blocks import BLOCK_TOKENS  # noqa: E402 - these need torch
from drivetrain.engines.native.kv.cache import KvCache, LayerShape  # noqa: E402
from drivetrain.engines.native.kv.groups import Window  # noqa: E402
from drivetrain.engines.native.kv.tables import BlockRow, BlockTable  # noqa: E402

Backend = MakeAttention

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Part:
    """Of a step: `count` ids from `first` on. The first `shared` blocks of its table are those of others too."""

    first: int
    count: int
    shared: int = 0


PARTS = [
    Part(0, 1), Part(5, 1), Part(127, 1, shared=3), Part(0, 37), Part(200, 17, shared=12), Part(2500, 9, shared=40),
    Part(1023, 2), Part(3000, 1, shared=40), Part(63, 64, shared=3), Part(16, 1, shared=1), Part(15, 1),
]  # fmt: skip
"""More than one span of our kernel, whole blocks, the first and the last place of one, decodes and chunks."""

FAR = 5
"""The number of one that reads much and shares a beginning with others."""


class Step:
    """The same ids and the same cache for each backend; one or more layers."""

    def __init__(
        self, layers: Mapping[int, Layer], parts: Sequence[Part] = PARTS, *, dtype: Any = torch.float32, seed: int = 7
    ) -> None:
        self.layers = layers
        self.parts = list(parts)
        self.dtype = dtype
        chance = torch.Generator().manual_seed(seed)
        lengths = [part.first + part.count for part in parts]
        beginning = max(part.shared for part in parts)
        own = [-(-length // BLOCK_TOKENS) - part.shared for part, length in zip(parts, lengths, strict=True)]
        numbers = torch.randperm(beginning + sum(own) + 3, generator=chance).tolist()  # some are nobody's
        self.num_blocks = len(numbers)
        common = [numbers.pop() for _ in range(beginning)]
        self.tables = [common[: p.shared] + [numbers.pop() for _ in range(n)] for p, n in zip(parts, own, strict=True)]
        num_ids = sum(part.count for part in parts)

        def drawn(*shape: int) -> Any:
            return torch.randn(shape, generator=chance).to(dtype)

        self.keys: dict[int, Any] = {}
        self.values: dict[int, Any] = {}
        self.new: dict[int, list[Any]] = {}
        for number, layer in layers.items():
            shape = layer.shape
            self.keys[number] = drawn(shape.kv_heads, self.num_blocks * BLOCK_TOKENS, shape.key_size)
            self.values[number] = drawn(shape.kv_heads, self.num_blocks * BLOCK_TOKENS, shape.value_size)
            self.new[number] = [  # as they come from models: not always dense
                drawn(1, num_ids, shape.heads, shape.key_size).transpose(1, 2),
                drawn(1, num_ids, shape.kv_heads, 2 * shape.key_size)[..., ::2].transpose(1, 2),
                drawn(1, shape.kv_heads, num_ids, shape.value_size),
            ]
        covered = torch.zeros(self.num_blocks * BLOCK_TOKENS, dtype=torch.bool)
        for index, part in enumerate(parts):
            covered[self.places(index)[: part.first]] = True
        for tensor in (*self.keys.values(), *self.values.values()):
            tensor[:, ~covered] = math.nan

    def places(self, index: int) -> Any:
        """Of all tokens of this part's sequence, its new ids included."""
        part = self.parts[index]
        at = [number * BLOCK_TOKENS + i for number in self.tables[index] for i in range(BLOCK_TOKENS)]
        return torch.tensor(at, dtype=torch.long)[: part.first + part.count]

    def behind(self) -> Any:
        """The places behind the last id of each part, in its last block: it may leave zeros there."""
        ends = [
            self.tables[i][-1] * BLOCK_TOKENS + t
            for i in range(len(self.parts))
            if self.tables[i]
            for t in range((self.parts[i].first + self.parts[i].count - 1) % BLOCK_TOKENS + 1, BLOCK_TOKENS)
        ]
        return torch.tensor(ends, dtype=torch.long)

    def ids(self, index: int) -> slice:
        """Of this part, in the packed row."""
        start = sum(part.count for part in self.parts[:index])
        return slice(start, start + self.parts[index].count)

    def pieces(self, windows: Sequence[Window]) -> list[Piece]:
        """Each with a row for each of these groups; it has given back what is behind the window."""
        made = []
        for index, part in enumerate(self.parts):
            rows = []
            for window in windows:
                gone = 0 if window is None else max(0, part.first + 1 - window) // BLOCK_TOKENS
                rows.append(BlockRow(numbers=array("q", [-1] * gone + self.tables[index][gone:]), num_gone=gone))
            made.append(Piece(self.ids(index).start, part.count, part.first, BlockTable(rows, [])))
        return made

    def covered(self) -> Any:
        """The places of all ids."""
        return torch.cat([self.places(index) for index in range(len(self.parts))])

    def attend(self, backend: Backend, device: Any = CPU, *, grouped: bool = True) -> dict[int, tuple[Any, Any, Any]]:
        """For each layer: what is found, and its keys and values afterwards. `grouped`: layers by their windows."""
        shapes = {number: layer.shape for number, layer in self.layers.items()}
        windows = {number: layer.spec.window if grouped else None for number, layer in self.layers.items()}
        sizes = dict.fromkeys(windows.values(), self.num_blocks + 1)
        cache = KvCache(shapes, sizes, windows=windows, dtype=self.dtype, device=device)
        for number in self.layers:
            cache.keys[number][:, :-BLOCK_TOKENS] = self.keys[number].to(device)
            cache.values[number][:, :-BLOCK_TOKENS] = self.values[number].to(device)
        made, pieces = backend(self.layers, cache), self.pieces(list(sizes))
        made.prepare(pieces)
        found = {number: made.attend(number, *(x.to(device) for x in self.new[number])) for number in self.layers}
        cached = {n: (cache.keys[n][:, :-BLOCK_TOKENS], cache.values[n][:, :-BLOCK_TOKENS]) for n in self.layers}
        return {number: (found[number], *cached[number]) for number in self.layers}

    def attended(self, backend: Backend) -> Any:
        """What is found in its only layer."""
        ((found, *_),) = self.attend(backend).values()
        return found

    def taken(self, order: Sequence[int]) -> Step:
        """The same parts in this order, perhaps not all of them."""
        other = Step.__new__(Step)
        other.layers, other.dtype, other.num_blocks = self.layers, self.dtype, self.num_blocks
        other.keys, other.values = self.keys, self.values
        other.parts, other.tables = [self.parts[n] for n in order], [self.tables[n] for n in order]
        row = self.row(order)
        other.new = {number: [x[:, :, row] for x in new] for number, new in self.new.items()}
        return other

    def row(self, order: Sequence[int]) -> list[int]:
        """Where the ids of these parts are in the packed row."""
        return [i for n in order for i in range(self.ids(n).start, self.ids(n).stop)]

    def elsewhere(self) -> Step:
        """The same in other blocks, with no beginning shared."""
        other = Step(self.layers, [replace(part, shared=0) for part in self.parts], dtype=self.dtype, seed=8)
        other.new = self.new
        for index in range(len(self.parts)):
            for number in self.layers:
                other.keys[number][:, other.places(index)] = self.keys[number][:, self.places(index)]
                other.values[number][:, other.places(index)] = self.values[number][:, self.places(index)]
        return other


def layer_of(shape: LayerShape, **spec: Any) -> Layer:
    plain: dict[str, Any] = {"scale": shape.key_size**-0.5, "window": None, "softcap": None, "sinks": None}
    return Layer(shape, AttentionSpec(**{**plain, **spec}))

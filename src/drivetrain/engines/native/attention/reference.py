"""Attention with torch's operations, on any device: what the other backends are held against.

Keys and values are taken out of their blocks for each product, so it is slower than a backend that reads them in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, ClassVar

import torch
from torch.nn import functional

from drivetrain.engines.native.attention.backend import AttentionSpec, Layer, Piece
from drivetrain.engines.native.kv.cache import KvCache
from drivetrain.engines.native.kv.groups import Window

MASKED = float("-inf")


class ReferenceAttention:
    """As in `backend.py`."""

    reads_in_place: ClassVar[bool] = False

    def __init__(self, layers: Mapping[int, Layer], cache: KvCache) -> None:
        self._layers = layers
        self._cache = cache
        self._prepared: list[_Prepared] = []
        """For each group of layers."""

    def prepare(self, pieces: Sequence[Piece]) -> None:
        self._prepared = [self._prepare(pieces, group) for group in range(len(self._cache.windows))]

    def _prepare(self, pieces: Sequence[Piece], group: int) -> _Prepared:
        """Decodes that read about as much share a product; each chunk of a prompt has its own."""
        device = next(iter(self._cache.keys.values())).device
        seen = [_Seen(piece, _lowest(piece, self._cache.windows[group])) for piece in pieces]
        singles = sorted((one for one in seen if one.piece.count == 1), key=_class_of)
        together = [list(some) for _, some in groupby(singles, key=_class_of)]
        products = []
        for some in (*together, *([one] for one in seen if one.piece.count > 1)):
            column = torch.arange(max(one.length for one in some))
            places = [self._places(one.piece, group, one.lowest)[column.clamp(max=one.length - 1)] for one in some]
            products.append(
                _Product(
                    ids=torch.cat([torch.arange(one.piece.start, one.piece.end) for one in some]).to(device),
                    positions=torch.tensor([range(one.piece.first, one.piece.length) for one in some], device=device),
                    columns=(torch.tensor([[one.lowest] for one in some]) + column).to(device),
                    places=torch.stack(places).to(device),
                )
            )
        written = torch.cat([self._places(piece, group, piece.first) for piece in pieces])
        return _Prepared(written.to(device), products)

    def attend(self, layer: int, query: Any, key: Any, value: Any) -> Any:
        keys, values, spec = self._cache.keys[layer], self._cache.values[layer], self._layers[layer].spec
        prepared = self._prepared[self._cache.group_of[layer]]
        keys.index_copy_(1, prepared.written, key[0])
        values.index_copy_(1, prepared.written, value[0])
        out = query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])
        for product in prepared.products:
            found = attend(
                query[0, :, product.ids].unflatten(1, (len(product.places), -1)).transpose(0, 1),
                _taken(keys, product.places),
                _taken(values, product.places),
                product.mask(spec.window, query.dtype),
                spec,
            )
            out[0, product.ids] = found.transpose(1, 2).flatten(0, 1)
        return out

    def _places(self, piece: Piece, group: int, first: int) -> Any:
        """Of the tokens of its sequence from `first` on, in the tensors of the cache."""
        size = self._cache.block_tokens
        blocks = torch.tensor(
            piece.table.rows[group].numbers[first // size : -(-piece.length // size)], dtype=torch.long
        )
        places = (blocks[:, None] * size + torch.arange(size)).flatten()
        return places[first % size : first % size + piece.length - first]


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What the layers of a group work with."""

    written: Any
    """The places of the new ids."""
    products: list[_Product]


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the ids of a piece see of their sequence: from `lowest` on."""

    piece: Piece
    lowest: int

    @property
    def length(self) -> int:
        return self.piece.length - self.lowest


@dataclass(slots=True)
class _Product:
    """Pieces of as many ids each."""

    ids: Any
    """In the packed row."""
    positions: Any
    """Of these ids in their sequences: `[pieces, count]`."""
    columns: Any
    """The positions of the keys in their sequences: `[pieces, length]`. A shorter one's go on behind its last."""
    places: Any
    """Of the keys and values: `[pieces, length]`. Those of a shorter one end with its last place again and again."""
    masks: dict[int | None, Any] = field(default_factory=dict)

    def mask(self, window: int | None, dtype: Any) -> Any:
        """Added to the scores: `[pieces, 1, count, length]`."""
        if window not in self.masks:
            visible = self.columns[:, None] <= self.positions[..., None]
            if window is not None:
                visible &= self.columns[:, None] > self.positions[..., None] - window
            mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, MASKED)
            self.masks[window] = mask[:, None]
        return self.masks[window]


def _lowest(piece: Piece, window: Window) -> int:
    """The first position that it sees."""
    return 0 if window is None else max(0, piece.first + 1 - window)


def _class_of(seen: _Seen) -> int:
    """Lengths up to the same power of two go together: the shorter ones are padded to at most twice theirs."""
    return seen.length.bit_length()


def _taken(tensor: Any, places: Any) -> Any:
    """`[pieces, kv_heads, length, size]`."""
    return tensor.index_select(1, places.flatten()).unflatten(1, places.shape).transpose(0, 1)


def attend(query: Any, key: Any, value: Any, mask: Any, spec: AttentionSpec) -> Any:
    """`query` is `[pieces, heads, count, size]`, `key` and `value` `[pieces, kv_heads, length, size]`.

    Heads of one kv head become further queries of it: its keys and values are read once for all of them.
    """
    kv_heads, count = key.shape[1], query.shape[2]
    groups = query.shape[1] // kv_heads
    shared = query.unflatten(1, (kv_heads, groups)).flatten(2, 3)
    mask = mask.repeat(1, 1, groups, 1)
    if spec.plain:
        found = functional.scaled_dot_product_attention(shared, key, value, attn_mask=mask, scale=spec.scale)
    else:
        found = _explicit(shared, key, value, mask, spec, count)
    return found.unflatten(2, (groups, count)).flatten(1, 2)


def _explicit(query: Any, key: Any, value: Any, mask: Any, spec: AttentionSpec, count: int) -> Any:
    """With plain matrix products, for classes with a soft cap or sinks."""
    scores = torch.matmul(query, key.transpose(-1, -2)) * spec.scale
    if spec.softcap is not None:
        scores = torch.tanh(scores / spec.softcap) * spec.softcap
    scores = scores + mask
    if spec.sinks is not None:
        column = spec.sinks.to(scores.dtype).repeat_interleave(count).reshape(1, key.shape[1], -1, 1)
        scores = torch.cat([scores, column.expand(*scores.shape[:-1], 1)], dim=-1)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32)
    if spec.sinks is not None:
        weights = weights[..., :-1]
    return torch.matmul(weights.to(value.dtype), value)

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

MASKED = float("-inf")


class ReferenceAttention:
    """As in `backend.py`."""

    reads_in_place: ClassVar[bool] = False

    def __init__(self, layers: Mapping[int, Layer], cache: KvCache) -> None:
        self._layers = layers
        self._cache = cache
        self._groups: list[_Group] = []
        self._written: Any = None

    def prepare(self, pieces: Sequence[Piece]) -> None:
        """Decodes whose tables are about as long share a product; each chunk of a prompt has its own."""
        device = next(iter(self._cache.keys.values())).device
        self._written = torch.cat([self._places(piece)[piece.first :] for piece in pieces]).to(device)
        self._groups = []
        singles = sorted((piece for piece in pieces if piece.count == 1), key=_class_of)
        together = [list(group) for _, group in groupby(singles, key=_class_of)]
        for group in (*together, *([piece] for piece in pieces if piece.count > 1)):
            column = torch.arange(max(piece.length for piece in group))
            places = [self._places(piece)[column.clamp(max=piece.length - 1)] for piece in group]
            self._groups.append(
                _Group(
                    ids=torch.cat([torch.arange(piece.start, piece.end) for piece in group]).to(device),
                    positions=torch.tensor([range(p.first, p.length) for p in group], device=device),
                    places=torch.stack(places).to(device),
                )
            )

    def attend(self, layer: int, query: Any, key: Any, value: Any) -> Any:
        keys, values, spec = self._cache.keys[layer], self._cache.values[layer], self._layers[layer].spec
        keys.index_copy_(1, self._written, key[0])
        values.index_copy_(1, self._written, value[0])
        out = query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])
        for group in self._groups:
            found = attend(
                query[0, :, group.ids].unflatten(1, (len(group.places), -1)).transpose(0, 1),
                _taken(keys, group.places),
                _taken(values, group.places),
                group.mask(spec.window, query.dtype),
                spec,
            )
            out[0, group.ids] = found.transpose(1, 2).flatten(0, 1)
        return out

    def _places(self, piece: Piece) -> Any:
        """Of all tokens of its sequence, in the tensors of the cache."""
        size = self._cache.block_tokens
        blocks = torch.tensor(piece.table.numbers[: -(-piece.length // size)])
        return (blocks[:, None] * size + torch.arange(size)).flatten()[: piece.length]


@dataclass(slots=True)
class _Group:
    """Pieces of as many ids each."""

    ids: Any
    """In the packed row."""
    positions: Any
    """Of these ids in their sequences: `[pieces, count]`."""
    places: Any
    """Of the keys and values: `[pieces, length]`. Those of a shorter one end with its last place again and again."""
    masks: dict[int | None, Any] = field(default_factory=dict)

    def mask(self, window: int | None, dtype: Any) -> Any:
        """Added to the scores: `[pieces, 1, count, length]`."""
        if window not in self.masks:
            column = torch.arange(self.places.shape[1], device=self.places.device)
            visible = column <= self.positions[..., None]
            if window is not None:
                visible &= column > self.positions[..., None] - window
            mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, MASKED)
            self.masks[window] = mask[:, None]
        return self.masks[window]


def _class_of(piece: Piece) -> int:
    """Lengths up to the same power of two go together: the shorter ones are padded to at most twice theirs."""
    return piece.length.bit_length()


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

"""What torch's `flex_attention` computes, where nothing compiles it.

By itself it would multiply every id with the whole cache. Here, as in the compiled kernels, a row reads the blocks that
its mask lists and no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn.attention import flex_attention as library  # noqa: E402 - it needs torch

from drivetrain.engines.native.attention.backend import MakeAttention, Piece  # noqa: E402
from drivetrain.engines.native.attention.flex import FlexAttention  # noqa: E402
from drivetrain.engines.native.kv.blocks import BLOCK_TOKENS  # noqa: E402


def eager_flex(query: Any, keys: Any, values: Any, *, block_mask: Any, kernel_options: Any, **more: Any) -> Any:
    rows = [_row(row, query, keys, values, block_mask, more) for row in range(len(query))]
    if "return_aux" not in more:
        return torch.cat(rows)
    return torch.cat([row for row, _ in rows]), library.AuxOutput(lse=torch.cat([aux.lse for _, aux in rows]))


def _row(row: int, query: Any, keys: Any, values: Any, mask: Any, more: dict[str, Any]) -> Any:
    """Its functions of a score or a place are called once with all of them: the library maps them over single ones,
    at a millisecond a call."""
    places = places_of(mask, row)
    keys, values = (each[0, :, places].repeat_interleave(query.shape[1] // len(each[0]), 0) for each in (keys, values))
    heads, ids = torch.arange(query.shape[1])[:, None, None], torch.arange(query.shape[2])[:, None]
    scores = query[row].float() @ keys.float().transpose(1, 2) * more["scale"]
    if more["score_mod"] is not None:
        scores = more["score_mod"](scores, row, heads, ids, places)
    scores = scores.masked_fill(~mask.mask_mod(row, heads, ids, places), -torch.inf)
    sums = scores.logsumexp(-1)
    # An id that is there to fill up sees nothing, and the sum of that is no number to subtract.
    shares = torch.exp(scores - sums.masked_fill(sums == -torch.inf, 0.0)[..., None])
    out = (shares.to(query.dtype) @ values)[None]
    return (out, library.AuxOutput(lse=sums[None])) if "return_aux" in more else out


def places_of(mask: Any, row: int) -> Any:
    """Those of the blocks that a row reads."""
    size = mask.BLOCK_SIZE[1]
    blocks = mask.kv_indices[row, 0, 0, : mask.kv_num_blocks[row, 0, 0]]
    return (blocks[:, None] * size + torch.arange(size)).flatten()


class InTheMiddle(FlexAttention):
    """In a cache that it has not filled: blocks begun before have zeros behind their last id, as it leaves them."""

    def prepare(self, pieces: Sequence[Piece]) -> None:
        super().prepare(pieces)
        self._clear(pieces)

    def _clear(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            for number, group in enumerate(self._groups):
                if piece.count and group._begun(piece) is None:
                    last, used = divmod(piece.length, BLOCK_TOKENS)
                    end = (piece.table.rows[number].numbers[last - (not used)] + 1) * BLOCK_TOKENS
                    for layer, values in self._cache.values.items():
                        if self._cache.group_of[layer] == number:
                            values[:, end - (BLOCK_TOKENS - used if used else 0) : end] = 0


class Fixed(InTheMiddle):
    """In steps of decodes, padded by nobody. The last block of the cache is spare."""

    def prepare(self, pieces: Sequence[Piece]) -> None:
        spares = [group._num_places // BLOCK_TOKENS - 1 for group in self._groups]
        self.reserve(2 * len(pieces), max(piece.length for piece in pieces), spares)
        for _ in range(2):  # the second time into tensors that hold something
            self.prepare_fixed(pieces)
        self._clear(pieces)


def in_the_middle(attention: MakeAttention) -> MakeAttention:
    return _changed(attention, InTheMiddle)


def fixed(attention: MakeAttention) -> MakeAttention:
    return _changed(attention, Fixed)


def _changed(attention: MakeAttention, cls: type[FlexAttention]) -> MakeAttention:
    return partial(cls, **attention.keywords) if isinstance(attention, partial) else cls


FLEX: MakeAttention = partial(InTheMiddle, flex=eager_flex)

"""torch's `flex_attention` where nothing compiles it.

By itself it would multiply every id with the whole cache. Here, as in the compiled kernels, a row reads the blocks that
its mask lists and no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any
from unittest import mock

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
    size = mask.BLOCK_SIZE[1]
    blocks = mask.kv_indices[row, 0, 0, : mask.kv_num_blocks[row, 0, 0]]
    places = (blocks[:, None] * size + torch.arange(size)).flatten()
    if not len(places):  # a row that is there to fill up
        out = query.new_zeros(1, *query.shape[1:3], values.shape[3])
        return (out, library.AuxOutput(lse=out.new_full(out.shape[:3], -torch.inf))) if "return_aux" in more else out

    def mask_mod(batch: Any, head: Any, i: Any, at: Any) -> Any:
        return mask.mask_mod(batch + row, head, i, places[at])

    whole = library.BlockMask.from_kv_blocks(
        torch.ones(1, 1, 1, dtype=torch.int32),
        torch.zeros(1, 1, 1, 1, dtype=torch.int32),
        BLOCK_SIZE=(mask.BLOCK_SIZE[0], len(places)),
        mask_mod=mask_mod,
        seq_lengths=(query.shape[2], len(places)),
    )
    with mock.patch.object(library, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True):
        return library.flex_attention(
            query[row : row + 1], keys[:, :, places], values[:, :, places], block_mask=whole, **more
        )


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

"""What `flex.py` works with in a step: for each group of layers, which ids are rows of a call and what these read."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention import flex_attention as library

from drivetrain.engines.native.attention.backend import Piece
from drivetrain.engines.native.kv.cache import KvCache

TILE = 32
"""Ids of a chunk in one row: what is read is read once for them."""

SPAN = 128
"""The kernel's unit for the ids of a row. A decode has one, whatever the unit."""


class FlexGroup:
    """Layers with one window, and what they work with in a step."""

    def __init__(self, cache: KvCache, number: int) -> None:
        self._number = number
        self._window = cache.windows[number]
        self._reach = 0 if self._window is None else self._window - 1
        """How far before itself an id sees."""
        self._block_tokens = cache.block_tokens
        tensor = next(cache.keys[layer] for layer, group in cache.group_of.items() if group == number)
        self._num_places, self._device = tensor.shape[1], tensor.device
        self._position_of = torch.zeros(self._num_places, dtype=torch.int32, device=self._device)
        """Of each place in its sequence. Sequences that share a block have it at the same place: it is a beginning."""
        self.step: FlexStep
        self._reserved: FlexStep
        self._spare: int
        self._fixed: dict[int, FlexStep] = {}

    def prepare(self, pieces: Sequence[Piece]) -> None:
        pieces = [piece for piece in pieces if piece.count]
        self._note_positions(pieces)
        decodes = [piece for piece in pieces if piece.count == 1]
        tiles = [tile for piece in pieces if piece.count > 1 for tile in _tiles(piece)]
        num_ids = sum(piece.count for piece in pieces)
        self.step = FlexStep(
            written=self._places(pieces).to(self._device),
            begun=torch.tensor([n for n in map(self._begun, pieces) if n is not None], dtype=torch.long).to(
                self._device
            ),
            rows=[self._rows(some, size, num_ids) for some, size in ((decodes, 1), (tiles, TILE)) if some],
        )

    def reserve(self, num_rows: int, length: int, spare: int) -> None:
        def zeros(*shape: int, dtype: Any = torch.int32) -> Any:
            return torch.zeros(shape, dtype=dtype, device=self._device)

        width = -(-length // self._block_tokens)
        lists = Lists(zeros(num_rows), zeros(num_rows, width), zeros(num_rows, 1))
        rows = Rows(1, None, zeros(num_rows, 1), lists)
        numbers = zeros(2, num_rows, dtype=torch.long)
        self._reserved, self._spare, self._fixed = FlexStep(numbers[0], numbers[1], [rows]), spare, {}

    def prepare_fixed(self, pieces: Sequence[Piece]) -> None:
        size = len(pieces)
        if size not in self._fixed:
            self._fixed[size] = made = self._reserved.first(size)
            made.rows[0].mask = self._mask(made.rows[0])
        self.step = step = self._fixed[size]
        self._note_positions(pieces)
        step.written.copy_(self._places(pieces))
        step.begun.copy_(torch.tensor([self._spare if n is None else n for n in map(self._begun, pieces)]))
        (rows,) = step.rows
        rows.positions.copy_(torch.tensor([[piece.first] for piece in pieces]))
        counts, listed = self._listed(pieces, size)
        rows.lists.counts.copy_(counts)
        rows.lists.listed[:, : listed.shape[1]].copy_(listed)
        rows.lists.lowest.copy_(rows.positions - self._reach)

    def _rows(self, pieces: Sequence[Piece], size: int, num_ids: int) -> Rows:
        """At least two, since one would be compiled on its own. The ids of rows that are not full are `num_ids`."""
        count = max(2, len(pieces))
        ids, positions = torch.full((count, size), num_ids), torch.full((count, size), -1, dtype=torch.int32)
        for row, piece in enumerate(pieces):
            ids[row, : piece.count] = torch.arange(piece.start, piece.end)
            positions[row, : piece.count] = torch.arange(piece.first, piece.length)
        positions = positions.to(self._device)
        counts, listed = (x.to(self._device) for x in self._listed(pieces, count))
        rows = Rows(size, ids.to(self._device), positions, Lists(counts, listed, positions - self._reach))
        rows.mask = self._mask(rows)
        return rows

    def _mask(self, rows: Rows) -> Any:
        lowest = None if self._window is None else rows.lists.lowest
        return library.BlockMask.from_kv_blocks(
            rows.lists.counts[:, None, None],
            rows.lists.listed[:, None, None],
            BLOCK_SIZE=(SPAN if rows.size == 1 else TILE, self._block_tokens),
            mask_mod=_visible(self._position_of, rows.positions, lowest),
            seq_lengths=(rows.size, self._num_places),
            compute_q_blocks=False,
        )

    def _listed(self, pieces: Sequence[Piece], num_rows: int) -> tuple[Any, Any]:
        """How many blocks each piece reads, and which."""
        lists = [self._numbers(piece)[self._first_seen(piece) :] for piece in pieces]
        counts = torch.zeros(num_rows, dtype=torch.int32)
        listed = torch.zeros(num_rows, max(2, *map(len, lists)), dtype=torch.int32)
        for row, numbers in enumerate(lists):
            counts[row], listed[row, : len(numbers)] = len(numbers), numbers
        return counts, listed

    def _note_positions(self, pieces: Sequence[Piece]) -> None:
        """Of all that is read in this step."""
        firsts = [self._first_seen(piece) for piece in pieces]
        numbers = [self._numbers(piece)[first:] for piece, first in zip(pieces, firsts, strict=True)]
        indices = [
            torch.arange(first, first + len(some), dtype=torch.int32)
            for first, some in zip(firsts, numbers, strict=True)
        ]
        tokens = torch.arange(self._block_tokens, dtype=torch.int32, device=self._device)
        of_blocks = self._position_of.unflatten(0, (-1, len(tokens)))
        of_blocks[torch.cat(numbers).to(self._device)] = (
            torch.cat(indices).to(self._device)[:, None] * len(tokens) + tokens
        )

    def _places(self, pieces: Sequence[Piece]) -> Any:
        """Of the new ids, in the tensors of the cache."""
        size = self._block_tokens
        positions = [torch.arange(piece.first, piece.length) for piece in pieces]
        blocks = [self._numbers(piece)[at // size] for piece, at in zip(pieces, positions, strict=True)]
        return torch.cat(blocks) * size + torch.cat(positions) % size

    def _begun(self, piece: Piece) -> int | None:
        """Its last block, if that holds new ids only."""
        last = (piece.length - 1) // self._block_tokens
        return self._row(piece)[last] if last * self._block_tokens >= piece.first else None

    def _first_seen(self, piece: Piece) -> int:
        """The first of its blocks of which its ids see anything."""
        return 0 if self._window is None else max(0, piece.first - self._reach) // self._block_tokens

    def _row(self, piece: Piece) -> array[int]:
        return piece.table.rows[self._number].numbers

    def _numbers(self, piece: Piece) -> Any:
        """Of the blocks up to its last id. A copy: a table that is being read cannot grow."""
        count = -(-piece.length // self._block_tokens)
        return torch.frombuffer(self._row(piece), dtype=torch.long, count=count).clone()


@dataclass(slots=True)
class Lists:
    """The blocks that each row reads, and the lowest position that each id sees."""

    counts: Any
    listed: Any
    lowest: Any


@dataclass(slots=True)
class Rows:
    """Some ids of each of some sequences: what one call computes."""

    size: int
    ids: Any
    """In the packed row, `[rows, size]`. None: each row has one, in the same order."""
    positions: Any
    """As `ids`, in their sequences; -1 for what is not there and sees nothing."""
    lists: Lists
    mask: Any = None

    def taken(self, query: Any) -> Any:
        """From `[heads, T, size]`."""
        if self.ids is None:
            return query.transpose(0, 1).unsqueeze(2)
        at = self.ids.clamp(max=query.shape[1] - 1)
        return query.index_select(1, at.flatten()).unflatten(1, at.shape).transpose(0, 1)

    def options(self, groups: int, block_tokens: int) -> dict[str, Any]:
        """For the kernel. The one for decodes shares keys among many processors and needs to know the number of rows.

        Its groups of heads are powers of two.
        """
        if self.ids is None and groups & (groups - 1) == 0:
            return {"BLOCK_N": block_tokens}
        return {"FORCE_USE_FLEX_ATTENTION": True, "BLOCK_M": min(TILE, 16 * self.size), "BLOCK_N": block_tokens}


@dataclass(slots=True)
class FlexStep:
    written: Any
    """The places of the new ids."""
    begun: Any
    """Blocks that hold nothing but new ids."""
    rows: list[Rows]

    def first(self, size: int) -> FlexStep:
        """Of the tensors for many rows, those for as many."""
        (rows,) = self.rows
        lists = Lists(rows.lists.counts[:size], rows.lists.listed[:size], rows.lists.lowest[:size])
        return FlexStep(self.written[:size], self.begun[:size], [Rows(1, None, rows.positions[:size], lists)])


def _tiles(piece: Piece) -> list[Piece]:
    return [
        Piece(piece.start + at, min(TILE, piece.count - at), piece.first + at, piece.table)
        for at in range(0, piece.count, TILE)
    ]


def _visible(position_of: Any, positions: Any, lowest: Any) -> Callable[..., Any]:
    def all_before(row: Any, head: Any, i: Any, place: Any) -> Any:
        return position_of[place] <= positions[row, i]

    def in_window(row: Any, head: Any, i: Any, place: Any) -> Any:
        return (position_of[place] <= positions[row, i]) & (position_of[place] >= lowest[row, i])

    return all_before if lowest is None else in_window

"""Attention with torch's `flex_attention`, on CUDA: keys and values are read where they are, block by block.

Each call is a batch of rows over the one cache: a row is the id of a decode, or up to `TILE` ids of a chunk. A row has
a list of blocks, and the compiled kernel reads no others. Which keys of these an id sees is a matter of positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch.nn.attention import flex_attention as library

from drivetrain.engines.native.attention.backend import AttentionSpec, Layer, Piece
from drivetrain.engines.native.kv.cache import KvCache

SMALLEST, LARGEST = 16, 256
"""Of the sizes of keys and values: the kernel's products take no smaller ones, and its memory holds no larger ones."""

TILE = 32
"""Ids of a chunk in one row: what is read is read once for them."""

SPAN = 128
"""The kernel's unit for the ids of a row. A decode has one, whatever the unit."""

DTYPES = (torch.float32, torch.float16, torch.bfloat16)

OLDEST = (2, 9)
"""Of torch: from here on, its kernels take blocks of 16."""

Flex = Callable[..., Any]
"""As torch's `flex_attention`."""


def obstacle() -> str:
    """Why it cannot be used with this torch; empty if it can."""
    from torch.utils._triton import has_triton

    if torch.__version__ < OLDEST:
        return f"it needs torch {OLDEST[0]}.{OLDEST[1]}, and this is {torch.__version__}"
    return "" if has_triton() else "it needs Triton"


def unfit(layers: Mapping[int, Layer], device: Any, dtype: Any) -> str:
    """Why it cannot serve these layers; empty if it can."""
    if device.type != "cuda" or dtype not in DTYPES:
        return "it is for float32, float16 and bfloat16 on CUDA"
    sizes = [size for layer in layers.values() for size in (layer.shape.key_size, layer.shape.value_size)]
    fits = all(SMALLEST <= size <= LARGEST for size in sizes)
    return "" if fits else f"it is for heads of {SMALLEST} to {LARGEST}"


def compiled(*, dynamic: bool | None) -> Flex:
    """Without the compiler, each id would be multiplied with the whole cache, so this fails where it cannot compile."""
    config = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, 64)  # one for each kind of layer and number of decodes
    made: Flex = torch.compile(library.flex_attention, fullgraph=True, dynamic=dynamic)
    return made


class FlexAttention:
    """As `CapturableAttention` in `backend.py`."""

    reads_in_place: ClassVar[bool] = True

    def __init__(self, layers: Mapping[int, Layer], cache: KvCache, flex: Flex | None = None) -> None:
        self._layers = layers
        self._cache = cache
        self._flex = flex or compiled(dynamic=None)
        self._flex_fixed = flex or compiled(dynamic=False)
        self._windows = {layer.spec.window for layer in layers.values()}
        self._caps = {spec.softcap: _capped(spec.softcap) for spec in (layer.spec for layer in layers.values())}
        self._device = next(iter(cache.keys.values())).device
        self._position_of = torch.zeros(cache.num_places, dtype=torch.int32, device=self._device)
        """Of each place in its sequence. Sequences that share a block have it at the same place: it is a beginning."""
        self._step: _Step
        self._reserved: _Step
        self._spare: int
        self._fixed: dict[int, _Step] = {}

    def prepare(self, pieces: Sequence[Piece]) -> None:
        pieces = [piece for piece in pieces if piece.count]
        self._note_positions(pieces)
        decodes = [piece for piece in pieces if piece.count == 1]
        tiles = [tile for piece in pieces if piece.count > 1 for tile in _tiles(piece)]
        num_ids = sum(piece.count for piece in pieces)
        self._step = _Step(
            written=self._places(pieces).to(self._device),
            begun=torch.tensor([n for n in map(self._begun, pieces) if n is not None], dtype=torch.long).to(
                self._device
            ),
            rows=[self._rows(some, size, num_ids) for some, size in ((decodes, 1), (tiles, TILE)) if some],
        )

    def reserve(self, num_rows: int, length: int, spare: int) -> None:
        def zeros(*shape: int, dtype: Any = torch.int32) -> Any:
            return torch.zeros(shape, dtype=dtype, device=self._device)

        rows, width = _Rows(1, None, zeros(num_rows, 1)), -(-length // self._cache.block_tokens)
        for window in self._windows:
            rows.lists[window] = _Lists(zeros(num_rows), zeros(num_rows, width), zeros(num_rows, 1))
        numbers = zeros(2, num_rows, dtype=torch.long)
        self._reserved, self._spare, self._fixed = _Step(numbers[0], numbers[1], [rows]), spare, {}

    def prepare_fixed(self, pieces: Sequence[Piece]) -> None:
        size = len(pieces)
        if size not in self._fixed:
            self._fixed[size] = self._reserved.first(size)
            self._mask(self._fixed[size].rows[0])
        self._step = step = self._fixed[size]
        self._note_positions(pieces)
        step.written.copy_(self._places(pieces))
        step.begun.copy_(torch.tensor([self._spare if n is None else n for n in map(self._begun, pieces)]))
        (rows,) = step.rows
        rows.positions.copy_(torch.tensor([[piece.first] for piece in pieces]))
        for window, lists in rows.lists.items():
            counts, listed = self._listed(pieces, window, size)
            lists.counts.copy_(counts)
            lists.listed[:, : listed.shape[1]].copy_(listed)
            lists.lowest.copy_(rows.positions - _reach(window))

    def attend(self, layer: int, query: Any, key: Any, value: Any) -> Any:
        keys, values, step = self._cache.keys[layer], self._cache.values[layer], self._step
        # A masked value is multiplied by zero, so there must be no NaN of others behind the last id in its block.
        values.unflatten(1, (-1, self._cache.block_tokens)).index_fill_(1, step.begun, 0)
        keys.index_copy_(1, step.written, key[0])
        values.index_copy_(1, step.written, value[0])
        spec, keys, values = self._layers[layer].spec, keys[None], values[None]
        out = query.new_zeros(query.shape[2] + 1, query.shape[1], value.shape[3])  # the last one is nobody's
        for rows in step.rows:
            found = self._found(rows.taken(query[0]), keys, values, spec, rows).transpose(1, 2)
            if rows.ids is None:
                return found.transpose(0, 1)
            out[rows.ids.flatten()] = found.flatten(0, 1)
        return out[None, :-1]

    def _found(self, query: Any, keys: Any, values: Any, spec: AttentionSpec, rows: _Rows) -> Any:
        """`query` is `[rows, heads, ids, size]`, as what is found."""
        with_sums = {} if spec.sinks is None else {"return_aux": library.AuxRequest(lse=True)}
        found = (self._flex_fixed if rows.ids is None else self._flex)(
            query,
            keys,
            values,
            score_mod=self._caps[spec.softcap],
            block_mask=rows.masks[spec.window],
            scale=spec.scale,
            enable_gqa=True,
            kernel_options=rows.options(query.shape[1] // keys.shape[1], self._cache.block_tokens),
            **with_sums,
        )
        if spec.sinks is None:
            return found
        found, sums = found
        return found * torch.sigmoid(sums.lse - spec.sinks.float()[:, None])[..., None].to(found.dtype)

    def _rows(self, pieces: Sequence[Piece], size: int, num_ids: int) -> _Rows:
        """At least two, since one would be compiled on its own. The ids of rows that are not full are `num_ids`."""
        count = max(2, len(pieces))
        ids, positions = torch.full((count, size), num_ids), torch.full((count, size), -1, dtype=torch.int32)
        for row, piece in enumerate(pieces):
            ids[row, : piece.count] = torch.arange(piece.start, piece.end)
            positions[row, : piece.count] = torch.arange(piece.first, piece.length)
        rows = _Rows(size, ids.to(self._device), positions.to(self._device))
        for window in self._windows:
            counts, listed = (x.to(self._device) for x in self._listed(pieces, window, count))
            rows.lists[window] = _Lists(counts, listed, rows.positions - _reach(window))
        self._mask(rows)
        return rows

    def _mask(self, rows: _Rows) -> None:
        for window, lists in rows.lists.items():
            rows.masks[window] = library.BlockMask.from_kv_blocks(
                lists.counts[:, None, None],
                lists.listed[:, None, None],
                BLOCK_SIZE=(SPAN if rows.size == 1 else TILE, self._cache.block_tokens),
                mask_mod=_visible(self._position_of, rows.positions, None if window is None else lists.lowest),
                seq_lengths=(rows.size, self._cache.num_places),
                compute_q_blocks=False,
            )

    def _listed(self, pieces: Sequence[Piece], window: int | None, num_rows: int) -> tuple[Any, Any]:
        """How many blocks each piece reads, and which: those of which its ids see anything."""
        size = self._cache.block_tokens
        lists = [self._numbers(piece) for piece in pieces]
        if window is not None:
            firsts = [max(0, piece.first - _reach(window)) // size for piece in pieces]
            lists = [numbers[first:] for numbers, first in zip(lists, firsts, strict=True)]
        counts = torch.zeros(num_rows, dtype=torch.int32)
        listed = torch.zeros(num_rows, max(2, *map(len, lists)), dtype=torch.int32)
        for row, numbers in enumerate(lists):
            counts[row], listed[row, : len(numbers)] = len(numbers), numbers
        return counts, listed

    def _note_positions(self, pieces: Sequence[Piece]) -> None:
        """Of all that is read in this step."""
        numbers = [self._numbers(piece) for piece in pieces]
        indices = torch.cat([torch.arange(len(some), dtype=torch.int32) for some in numbers]).to(self._device)
        tokens = torch.arange(self._cache.block_tokens, dtype=torch.int32, device=self._device)
        of_blocks = self._position_of.unflatten(0, (-1, len(tokens)))
        of_blocks[torch.cat(numbers).to(self._device)] = indices[:, None] * len(tokens) + tokens

    def _places(self, pieces: Sequence[Piece]) -> Any:
        """Of the new ids, in the tensors of the cache."""
        size = self._cache.block_tokens
        positions = [torch.arange(piece.first, piece.length) for piece in pieces]
        blocks = [self._numbers(piece)[at // size] for piece, at in zip(pieces, positions, strict=True)]
        return torch.cat(blocks) * size + torch.cat(positions) % size

    def _begun(self, piece: Piece) -> int | None:
        """Its last block, if that holds new ids only."""
        last = (piece.length - 1) // self._cache.block_tokens
        return piece.table.numbers[last] if last * self._cache.block_tokens >= piece.first else None

    def _numbers(self, piece: Piece) -> Any:
        """Of the blocks up to its last id. A copy: a table that is being read cannot grow."""
        count = -(-piece.length // self._cache.block_tokens)
        return torch.frombuffer(piece.table.numbers, dtype=torch.long, count=count).clone()


@dataclass(slots=True)
class _Lists:
    """The blocks that each row reads in layers of one window, and the lowest position that each id sees there."""

    counts: Any
    listed: Any
    lowest: Any


@dataclass(slots=True)
class _Rows:
    """Some ids of each of some sequences: what one call computes."""

    size: int
    ids: Any
    """In the packed row, `[rows, size]`. None: each row has one, in the same order."""
    positions: Any
    """As `ids`, in their sequences; -1 for what is not there and sees nothing."""
    lists: dict[int | None, _Lists] = field(default_factory=dict)
    masks: dict[int | None, Any] = field(default_factory=dict)
    """By the window of a layer, both."""

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
class _Step:
    written: Any
    """The places of the new ids."""
    begun: Any
    """Blocks that hold nothing but new ids."""
    rows: list[_Rows]

    def first(self, size: int) -> _Step:
        """Of the tensors for many rows, those for as many."""
        (rows,) = self.rows
        some = _Rows(1, None, rows.positions[:size])
        for window, lists in rows.lists.items():
            some.lists[window] = _Lists(lists.counts[:size], lists.listed[:size], lists.lowest[:size])
        return _Step(self.written[:size], self.begun[:size], [some])


def _tiles(piece: Piece) -> list[Piece]:
    return [
        Piece(piece.start + at, min(TILE, piece.count - at), piece.first + at, piece.table)
        for at in range(0, piece.count, TILE)
    ]


def _reach(window: int | None) -> int:
    """How far before itself an id sees."""
    return 0 if window is None else window - 1


def _visible(position_of: Any, positions: Any, lowest: Any) -> Callable[..., Any]:
    def all_before(row: Any, head: Any, i: Any, place: Any) -> Any:
        return position_of[place] <= positions[row, i]

    def in_window(row: Any, head: Any, i: Any, place: Any) -> Any:
        return (position_of[place] <= positions[row, i]) & (position_of[place] >= lowest[row, i])

    return all_before if lowest is None else in_window


def _capped(softcap: float | None) -> Callable[..., Any] | None:
    def capped(score: Any, row: Any, head: Any, i: Any, place: Any) -> Any:
        return torch.tanh(score / softcap) * softcap

    return None if softcap is None else capped

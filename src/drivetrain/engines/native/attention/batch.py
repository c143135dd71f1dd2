"""One step's work as tensors: all new ids in one row, decodes first, and where each one's keys and values are.

Built once per step; the layers only look things up. The first layer that needs a mask makes it for the others too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch

from drivetrain.engines.native.kv.cache import KvCache, RowSegment
from drivetrain.engines.native.schedule.sequence import Work

MASKED = float("-inf")


@dataclass(slots=True)
class Decodes:
    """The single ids of the sequences in one segment: `ids[start:end]` of the packed row.

    Attention runs over the segment's first `num_rows` rows at once, as one block. Rows among them that decode
    nothing in this step are computed in vain and left out by `rows`; `dense` says that there are none.
    """

    segment: RowSegment
    start: int
    end: int
    rows: Any
    positions: Any
    num_rows: int
    dense: bool
    length: int
    """Of the longest one, the new id included."""
    lengths: Any
    even: bool
    """Whether all have this length, so that no mask is needed."""
    masks: dict[int | None, Any] = field(default_factory=dict)

    def mask(self, window: int | None, dtype: Any) -> Any:
        """Added to the scores: `[num_rows, 1, 1, length]`, or None where everything may be visible."""
        if window is not None and window >= self.length:
            window = None
        if window is None and self.even:
            return None
        if window not in self.masks:
            column = torch.arange(self.length, device=self.lengths.device)
            visible = column < self.lengths[:, None]
            if window is not None:
                visible &= column >= self.lengths[:, None] - window
            self.masks[window] = _additive(visible, dtype)[:, None, None, :]
        return self.masks[window]


@dataclass(slots=True)
class Chunk:
    """A piece of one prompt: `ids[start:end]` of the packed row stand at `first` and after in their sequence."""

    segment: RowSegment
    row: int
    start: int
    end: int
    first: int
    masks: dict[tuple[int | None, int], Any] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return self.end - self.start

    @property
    def length(self) -> int:
        return self.first + self.count

    def begin(self, window: int | None) -> int:
        """The first position that any of its ids sees."""
        return 0 if window is None else max(self.first + 1 - window, 0)

    def mask(self, window: int | None, groups: int, dtype: Any, device: Any) -> Any:
        """Added to the scores: `[groups * count, length - begin]`, the same for each group. None: plainly causal."""
        if window is not None and window >= self.length:
            window = None
        if window is None and self.first == 0:
            return None
        if (window, groups) not in self.masks:
            column = torch.arange(self.begin(window), self.length, device=device)
            row = torch.arange(self.first, self.length, device=device)[:, None]
            visible = column <= row
            if window is not None:
                visible &= column > row - window
            self.masks[window, groups] = _additive(visible, dtype).repeat(groups, 1)
        return self.masks[window, groups]


@dataclass(slots=True)
class PackedBatch:
    """`works` are in the order of the packed row. `keep` are the positions in it whose logits are wanted."""

    works: list[Work]
    input_ids: Any
    position_ids: Any
    keep: Any
    decodes: list[Decodes]
    chunks: list[Chunk]
    kernel_pieces: Any = None
    """The chunks in the kernel's form, which it makes when it first needs them."""


def pack(works: Iterable[Work], cache: KvCache, device: Any, *, only_chunks: bool = False) -> PackedBatch:
    """`only_chunks`: single ids are chunks like the others, not grouped by segment."""
    singles = sorted((work for work in works if work.count == 1), key=_by_place)
    rest = [work for work in works if work.count > 1]
    ordered = singles + rest
    ids: list[int] = []
    positions: list[int] = []
    keep: list[int] = []
    for work in ordered:
        ids += work.sequence.ids[work.start : work.start + work.count]
        positions += range(work.start, work.start + work.count)
        keep += range(len(ids) - work.keep, len(ids))
    return PackedBatch(
        works=ordered,
        input_ids=torch.tensor([ids], device=device),
        position_ids=torch.tensor([positions], device=device),
        keep=torch.tensor(keep, dtype=torch.long, device=device),
        decodes=[] if only_chunks else _decodes(singles, cache, device),
        chunks=_chunks(ordered, 0, cache) if only_chunks else _chunks(rest, len(singles), cache),
    )


def _decodes(works: Sequence[Work], cache: KvCache, device: Any) -> list[Decodes]:
    made = []
    start = 0
    located = [(*cache.locate(_slot_place(work)), work) for work in works]
    for _, group in groupby(located, key=lambda item: id(item[0])):
        items = list(group)
        segment, rows = items[0][0], [row for _, row, _ in items]
        num_rows = max(rows) + 1
        lengths = [1] * num_rows
        for _, row, work in items:
            lengths[row] = work.start + 1
        longest = max(lengths)
        made.append(
            Decodes(
                segment=segment,
                start=start,
                end=start + len(items),
                rows=torch.tensor(rows, device=device),
                positions=torch.tensor([work.start for _, _, work in items], device=device),
                num_rows=num_rows,
                dense=len(rows) == num_rows,
                length=longest,
                lengths=torch.tensor(lengths, device=device),
                even=min(lengths) == longest,
            )
        )
        start += len(items)
    return made


def _chunks(works: Sequence[Work], start: int, cache: KvCache) -> list[Chunk]:
    made = []
    for work in works:
        segment, row = cache.locate(_slot_place(work))
        made.append(Chunk(segment, row, start, start + work.count, work.start))
        start += work.count
    return made


def _additive(visible: Any, dtype: Any) -> Any:
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, MASKED)


def _slot_place(work: Work) -> Any:
    assert work.sequence.slot is not None
    return work.sequence.slot.place


def _by_place(work: Work) -> tuple[int, int]:
    place = _slot_place(work)
    return place.capacity, place.index

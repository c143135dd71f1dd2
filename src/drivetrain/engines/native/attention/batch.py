"""One step's work as tensors: all new ids in one row, and where each one's keys and values are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from drivetrain.engines.native.attention.backend import Piece
from drivetrain.engines.native.schedule.sequence import Work


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """`keep` are the positions in the row whose logits are wanted."""

    input_ids: Any
    position_ids: Any
    keep: Any
    pieces: list[Piece]


def pack(works: Sequence[Work], device: Any) -> PackedBatch:
    ids: list[int] = []
    positions: list[int] = []
    keep: list[int] = []
    pieces: list[Piece] = []
    for work in works:
        table = work.sequence.table
        assert table is not None
        pieces.append(Piece(len(ids), work.count, work.start, table))
        ids += work.sequence.ids[work.start : work.start + work.count]
        positions += range(work.start, work.start + work.count)
        keep += range(len(ids) - work.keep, len(ids))
    return PackedBatch(
        input_ids=torch.tensor([ids], device=device),
        position_ids=torch.tensor([positions], device=device),
        keep=torch.tensor(keep, dtype=torch.long, device=device),
        pieces=pieces,
    )

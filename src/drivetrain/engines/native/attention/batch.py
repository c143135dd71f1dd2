"""One step's work as tensors: all new ids in one row, and where each one's keys and values are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from drivetrain.engines.native.attention.backend import Piece
from drivetrain.engines.native.kv.tables import BlockTable


class Span(Protocol):
    """A piece of a sequence or of a text: `count` of its ids from `start` on. The last `keep` of them need logits."""

    @property
    def ids(self) -> Sequence[int]: ...
    @property
    def start(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def keep(self) -> int: ...
    @property
    def table(self) -> BlockTable: ...


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """`keep` are the positions in the row whose logits are wanted."""

    input_ids: Any
    position_ids: Any
    keep: Any
    pieces: list[Piece]


def pack(spans: Sequence[Span], device: Any) -> PackedBatch:
    ids: list[int] = []
    positions: list[int] = []
    keep: list[int] = []
    pieces: list[Piece] = []
    for span in spans:
        pieces.append(Piece(len(ids), span.count, span.start, span.table))
        ids += span.ids[span.start : span.start + span.count]
        positions += range(span.start, span.start + span.count)
        keep += range(len(ids) - span.keep, len(ids))
    return PackedBatch(
        input_ids=torch.tensor([ids], device=device),
        position_ids=torch.tensor([positions], device=device),
        keep=torch.tensor(keep, dtype=torch.long, device=device),
        pieces=pieces,
    )

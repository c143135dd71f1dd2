"""What attends: one of `reference.py` (any device) and `cpu.py` (our kernel). Nobody else asks which one it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from drivetrain.engines.native.kv.cache import LayerShape
from drivetrain.engines.native.kv.tables import BlockTable


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """How one layer attends."""

    scale: float
    window: int | None
    softcap: float | None
    sinks: Any

    @property
    def plain(self) -> bool:
        """Whether scores go through a softmax and nothing else."""
        return self.softcap is None and self.sinks is None


@dataclass(frozen=True, slots=True)
class Layer:
    shape: LayerShape
    spec: AttentionSpec


@dataclass(frozen=True, slots=True)
class Piece:
    """`count` ids of the packed row from `start` on. They stand at `first` and after in the sequence of this table."""

    start: int
    count: int
    first: int
    table: BlockTable

    @property
    def end(self) -> int:
        return self.start + self.count

    @property
    def length(self) -> int:
        """Of the sequence, these ids included."""
        return self.first + self.count


class AttentionBackend(Protocol):
    """`prepare` once a step, then `attend` for each layer. The pieces follow one another and are the packed row.

    The cache says of which group a layer is, and so which row of a table has its blocks. A backend reads only places
    that its pieces cover, and of those only what the group's window lets them see: in others, a sequence that nobody
    has judged yet may have left NaN, and the blocks behind a window are others'.
    """

    reads_in_place: ClassVar[bool]
    """Whether it computes while it reads the cache, in place of taking out what it needs."""

    def prepare(self, pieces: Sequence[Piece]) -> None: ...

    def attend(self, layer: int, query: Any, key: Any, value: Any) -> Any:
        """`query` is `[1, heads, T, size]`, `key` and `value` `[1, kv_heads, T, size]`; returns `[1, T, heads, size]`.

        Keys and values are in the cache afterwards.
        """
        ...

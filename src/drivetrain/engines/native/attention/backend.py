"""What attends: `reference.py` (any device), `cpu.py` (our kernel) or `flex.py` (CUDA). Nobody else asks which."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from drivetrain.engines.native.kv.cache import KvCache, LayerShape
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


@runtime_checkable
class CapturableAttention(AttentionBackend, Protocol):
    """One whose `attend` can be captured on the device and replayed later, in steps that only decode."""

    def reserve(self, num_rows: int, length: int, spares: Sequence[int]) -> None:
        """Tensors for steps of up to so many ids, of sequences of up to `length`.

        `spares`: for each group of layers, a block that nobody holds.
        """
        ...

    def prepare_fixed(self, pieces: Sequence[Piece]) -> None:
        """As `prepare`, for one id of each sequence in the order of the row, into the reserved tensors.

        What `attend` reads is then the same tensors each time, for the same number of pieces.
        """
        ...


MakeAttention = Callable[[Mapping[int, Layer], KvCache], AttentionBackend]

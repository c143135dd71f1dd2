"""Steps that only decode, captured on the device once for each number of ids and then replayed.

A replay runs no Python and starts hundreds of kernels at once. It reads the tensors that it was captured with, so a
step is copied into these, and filled up to the next number with ids of a sequence that does not exist.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from drivetrain.engines.base.error_text import one_line
from drivetrain.engines.native.attention.backend import CapturableAttention
from drivetrain.engines.native.attention.batch import PackedBatch, Span, pack
from drivetrain.engines.native.attention.layers import AttentionStage
from drivetrain.engines.native.kv.cache import KvCache
from drivetrain.engines.native.kv.tables import BlockRow, BlockTable
from drivetrain.engines.native.model.runner import Forward, Runner

_log = logging.getLogger(__name__)

Compute = Callable[[], Any]
Capture = Callable[[Compute], tuple[Callable[[], None], Any]]
"""Runs this once, or more often, and returns how to run it again and the tensor in which its result then is."""


class GraphRunner(Runner):
    """A `Runner` that replays what it has captured, where a step fits."""

    def __init__(
        self,
        model: Any,
        stage: AttentionStage,
        cache: KvCache,
        attention: CapturableAttention,
        forward: Forward,
        *,
        max_batch: int,
        context_length: int,
        spares: Sequence[int],
        capture: Capture,
    ) -> None:
        """`spares`: for each group of layers, a block of the cache that no sequence ever holds."""
        super().__init__(model, stage, cache, attention, forward)
        self._fixed = attention
        self._spare = _Nobody(BlockTable([BlockRow(numbers=array("q", [spare])) for spare in spares], []))
        self._captured: dict[int, _Step] = {}
        self._capture = capture
        self._max_batch = max_batch
        attention.reserve(sizes(max_batch)[-1], context_length, spares)

    def capture(self) -> None:
        """All sizes, before the first step. If one fails, all steps are computed as they were."""
        try:
            with torch.inference_mode():
                for size in reversed(sizes(self._max_batch)):  # the smaller ones find room in the memory of the largest
                    self._captured[size] = self._made(size)
        except Exception as exc:  # noqa: BLE001 - whatever it is, the engine can do without
            self._captured.clear()
            _log.warning("decode steps are not captured: %s", one_line(exc))

    def forward(self, works: Sequence[Span]) -> Any:
        """As in `Runner`. The logits are good until the next call."""
        step = self._captured.get(size_for(len(works)))
        if step is None or any(work.count != 1 or work.keep != 1 for work in works):
            return super().forward(works)
        with torch.inference_mode():
            self._fill(step, works)
            step.replay()
            return step.logits[: len(works)]

    def _made(self, size: int) -> _Step:
        device = self.model.device
        batch = pack([self._spare] * size, device)

        def compute() -> Any:
            with self._stage.using(self._fixed):
                return self.compute(batch.input_ids, batch.position_ids, batch.keep)

        self._fixed.prepare_fixed(batch.pieces)
        return _Step(size, batch, *self._capture(compute))

    def _fill(self, step: _Step, works: Sequence[Span]) -> None:
        batch = pack([*works, *[self._spare] * (step.size - len(works))], "cpu")
        step.batch.input_ids.copy_(batch.input_ids)
        step.batch.position_ids.copy_(batch.position_ids)
        self._fixed.prepare_fixed(batch.pieces)


@dataclass(frozen=True, slots=True)
class _Step:
    """What was captured, and what it reads and writes by address: that must live as long."""

    size: int
    batch: PackedBatch
    replay: Callable[[], None]
    logits: Any


@dataclass(frozen=True, slots=True)
class _Nobody:
    """A `Span` of one id at the beginning of a block that nobody reads."""

    table: BlockTable
    ids: ClassVar[tuple[int, ...]] = (0,)
    start: ClassVar[int] = 0
    count: ClassVar[int] = 1
    keep: ClassVar[int] = 1


def size_for(count: int) -> int:
    """The next power of two."""
    return 1 << max(0, count - 1).bit_length()


def sizes(max_batch: int) -> list[int]:
    return [1 << power for power in range(size_for(max_batch).bit_length())]


def cuda_capture() -> Capture:
    """All of them share memory for what they compute in between: one is replayed at a time."""
    pool = torch.cuda.graph_pool_handle()

    def capture(compute: Compute) -> tuple[Callable[[], None], Any]:
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(2):  # what is compiled or made at the first call cannot be captured
                compute()
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            result = compute()
        return graph.replay, result

    return capture

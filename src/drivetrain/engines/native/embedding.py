"""Embeddings beside the decode loop: some tokens of some texts per pass, packed into one row without padding.

A text's keys and values are in tensors of its own until it is done: it takes no row of the KV cache from a request, and
cannot affect an answer. Everything runs on the engine's thread, between two steps.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from drivetrain.core.errors import DeviceLost, DrivetrainError, EngineFailed, OutOfMemory
from drivetrain.engines.base.settings import Pooling
from drivetrain.engines.checkpoint import errors
from drivetrain.engines.checkpoint.pooling import Pooled
from drivetrain.engines.native.attention.batch import Chunk, PackedBatch
from drivetrain.engines.native.attention.layers import AttentionStage
from drivetrain.engines.native.kv.cache import LayerShape, RowSegment

ALONE = 256
"""Tokens of a pass while nothing is generated."""

BESIDE = 32
"""The same beside running requests, at first; then as many as take about as long as one of their steps."""

LEAST = 8


@dataclass(slots=True, eq=False)
class EmbedCall:
    """One call of `embed`: the ids of its texts, and their vectors as they come, in the same order."""

    texts: Sequence[tuple[int, ...]]
    num_begun: int = 0
    vectors: list[tuple[float, ...]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CallOver:
    """The call has ended, perhaps with an error, and holds nothing."""

    job: EmbedCall
    error: DrivetrainError | None = None


@dataclass(slots=True, eq=False)
class Text:
    """A text that was begun. The keys and values of its first `num_done` ids are in `segment`."""

    call: EmbedCall
    ids: tuple[int, ...]
    pooled: Pooled
    num_done: int = 0
    segment: RowSegment | None = None

    @property
    def left(self) -> int:
        return len(self.ids) - self.num_done


@dataclass(frozen=True, slots=True)
class Piece:
    """What one pass does of a text: `count` ids from `text.num_done` on."""

    text: Text
    count: int

    @property
    def is_last(self) -> bool:
        return self.count == self.text.left


class NativeEmbedder:
    """`add` and `drop` calls between passes; `step` while not `idle`. Calls take turns, text by text."""

    def __init__(self, model: Any, stage: AttentionStage, layers: Mapping[int, LayerShape], pooling: Pooling) -> None:
        self.passes_run = 0
        self._model = getattr(model, "base_model", model)
        self._device, self._dtype = model.device, model.dtype
        self._stage = stage
        self._layers = layers
        self._pooling = pooling
        self._calls: deque[EmbedCall] = deque()
        self._num_beside = BESIDE
        self._open: Text | None = None
        """Begun and not done: one at most, so that only one text holds memory between passes."""

    @property
    def idle(self) -> bool:
        return not self._calls

    def add(self, call: EmbedCall) -> list[CallOver]:
        if not call.texts:
            return [CallOver(call)]
        self._calls.append(call)
        return []

    def drop(self, call: EmbedCall) -> list[CallOver]:
        """Give the call up."""
        return [self._end(call)] if call in self._calls else []

    def step(self, limit_s: float | None = None) -> list[CallOver]:
        """One pass, of about `limit_s` at most if others wait for its end.

        Raises `DeviceLost` only: any other failure ends the calls that were in the pass.
        """
        self.passes_run += 1
        pieces = self._plan(ALONE if limit_s is None else min(self._num_beside, ALONE))
        began = time.perf_counter()
        try:
            with torch.inference_mode():
                made = self._vectors(pieces, self._hidden(pieces))
        except BaseException as exc:  # noqa: BLE001 - the boundary: everything becomes a typed ending, panics too
            return self._failed(pieces, exc)
        if limit_s is not None:
            self._adapt(time.perf_counter() - began, limit_s)
        return self._advance(pieces, made)

    def _adapt(self, took_s: float, limit_s: float) -> None:
        """How much fits into a given time depends on model and device, so it is learnt."""
        if took_s > limit_s:
            self._num_beside = max(LEAST, self._num_beside // 2)
        elif took_s < limit_s / 2:
            self._num_beside = min(ALONE, self._num_beside * 2)

    def _plan(self, room: int) -> list[Piece]:
        """Go on with what is open, then with the next text of each call in turn."""
        pieces: list[Piece] = []
        while room and (text := self._open or self._begin()) is not None:
            piece = Piece(text, min(room, text.left))
            pieces.append(piece)
            room -= piece.count
            self._open = None if piece.is_last else text
        return pieces

    def _begin(self) -> Text | None:
        for call in list(self._calls):
            self._calls.rotate(-1)
            if call.num_begun < len(call.texts):
                call.num_begun += 1
                return Text(call, call.texts[call.num_begun - 1], Pooled(self._pooling))
        return None

    def _hidden(self, pieces: list[Piece]) -> Any:
        """The hidden states of all ids of the pass, `[ids, size]`."""
        ids: list[int] = []
        positions: list[int] = []
        chunks: list[Chunk] = []
        for piece in pieces:
            text, first = piece.text, piece.text.num_done
            if text.segment is None:
                text.segment = self._segment(len(text.ids))
            chunks.append(Chunk(text.segment, 0, len(ids), len(ids) + piece.count, first))
            ids += text.ids[first : first + piece.count]
            positions += range(first, first + piece.count)
        self._stage.batch = PackedBatch(
            works=[],
            input_ids=torch.tensor([ids], device=self._device),
            position_ids=torch.tensor([positions], device=self._device),
            keep=None,
            decodes=[],
            chunks=chunks,
        )
        try:
            out = self._model(
                input_ids=self._stage.batch.input_ids,
                position_ids=self._stage.batch.position_ids,
                attention_mask=torch.ones(1, len(ids), dtype=torch.bool, device=self._device),
                use_cache=False,
            )
        finally:
            self._stage.batch = None
        return out.last_hidden_state[0]

    def _segment(self, length: int) -> RowSegment:
        """One row of its own. Nothing of it is read before it is written."""

        def block(heads: int, size: int) -> Any:
            return torch.empty(1, heads, length, size, dtype=self._dtype, device=self._device)

        keys = {layer: block(shape.kv_heads, shape.key_size) for layer, shape in self._layers.items()}
        values = {layer: block(shape.kv_heads, shape.value_size) for layer, shape in self._layers.items()}
        return RowSegment(length, 0, 1, keys, values)

    def _vectors(self, pieces: list[Piece], hidden: Any) -> list[tuple[float, ...] | EngineFailed | None]:
        """For each piece that ends its text: the vector, or why there is none."""
        made: list[tuple[float, ...] | EngineFailed | None] = []
        for piece, states in zip(pieces, hidden.split([piece.count for piece in pieces]), strict=True):
            piece.text.pooled.add(states)
            try:
                made.append(piece.text.pooled.vector() if piece.is_last else None)
            except EngineFailed as exc:
                made.append(exc)
        hidden[-1, -1].item()  # wait for the device, so that the pass is timed whole
        return made

    def _advance(self, pieces: list[Piece], made: list[tuple[float, ...] | EngineFailed | None]) -> list[CallOver]:
        over: list[CallOver] = []
        for piece, vector in zip(pieces, made, strict=True):
            call = piece.text.call
            piece.text.num_done += piece.count
            if vector is None or call not in self._calls:
                continue
            if isinstance(vector, EngineFailed):
                over.append(self._end(call, vector))
                continue
            call.vectors.append(vector)
            if len(call.vectors) == len(call.texts):
                over.append(self._end(call))
        return over

    def _failed(self, pieces: list[Piece], exc: BaseException) -> list[CallOver]:
        error = errors.while_running(exc)
        if isinstance(error, DeviceLost):
            raise error  # which ends every request, not these calls alone
        calls = dict.fromkeys(piece.text.call for piece in pieces)
        over = [self._end(call, errors.again(error)) for call in calls]
        pieces.clear()
        if isinstance(error, OutOfMemory):
            with contextlib.suppress(Exception):  # a broken device says so to the next request as well
                errors.free_cached_memory()
        return over

    def _end(self, call: EmbedCall, error: DrivetrainError | None = None) -> CallOver:
        self._calls.remove(call)
        if self._open is not None and self._open.call is call:
            self._open = None
        return CallOver(call, error)

"""Embeddings in the steps of the engine: some tokens of some texts, packed into one row without padding.

It is a pass of its own, because it wants what the model's last layer says and no logits. It costs the step what chunks
of prompts would, and a text has its place among the requests: its blocks of the KV cache come from younger ones if need
be, and it waits for older ones.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from drivetrain.core.errors import DeviceLost, DrivetrainError, EngineFailed, OutOfMemory
from drivetrain.engines.base.settings import Pooling
from drivetrain.engines.checkpoint import errors
from drivetrain.engines.checkpoint.pooling import Pooled
from drivetrain.engines.native.kv.tables import BlockTable
from drivetrain.engines.native.model.runner import Runner
from drivetrain.engines.native.schedule.budget import Room
from drivetrain.engines.native.schedule.scheduler import Scheduler


@dataclass(slots=True, eq=False)
class EmbedCall:
    """One call of `embed`: the ids of its texts, and their vectors as they come, in the same order.

    `number` is its place among all requests.
    """

    texts: Sequence[tuple[int, ...]]
    number: int
    num_begun: int = 0
    vectors: list[tuple[float, ...]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CallOver:
    """The call has ended, perhaps with an error, and holds nothing."""

    job: EmbedCall
    error: DrivetrainError | None = None


@dataclass(slots=True, eq=False)
class Text:
    """A text that was begun."""

    call: EmbedCall
    ids: tuple[int, ...]
    pooled: Pooled
    table: BlockTable

    @property
    def num_done(self) -> int:
        return self.table.filled

    @property
    def left(self) -> int:
        return len(self.ids) - self.num_done


@dataclass(frozen=True, slots=True)
class Part:
    """What one pass does of a text: `count` of its ids, from the first that is not done. A `Span` without logits."""

    text: Text
    count: int
    keep: int = 0

    @property
    def ids(self) -> tuple[int, ...]:
        return self.text.ids

    @property
    def start(self) -> int:
        return self.text.num_done

    @property
    def table(self) -> BlockTable:
        return self.text.table

    @property
    def is_last(self) -> bool:
        return self.count == self.text.left


class NativeEmbedder:
    """`add` and `drop` calls between steps; `step` while not `idle`. Calls take turns, text by text."""

    def __init__(self, runner: Runner, scheduler: Scheduler, pooling: Pooling) -> None:
        self.passes_run = 0
        self._runner = runner
        self._scheduler = scheduler
        self._pooling = pooling
        self._calls: deque[EmbedCall] = deque()
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

    def step(self, room: Room) -> list[CallOver]:
        """One pass. Raises `DeviceLost` only: any other failure ends the calls that were in the pass."""
        parts = self._plan(room)
        if not parts:
            return []  # older requests hold the memory
        self.passes_run += 1
        try:
            self._runner.cache.apply(self._scheduler.pool.drain())
            with torch.inference_mode():
                made = self._vectors(parts, self._runner.hidden_states(parts))
        except BaseException as exc:  # noqa: BLE001 - the boundary: everything becomes a typed ending, panics too
            return self._failed(parts, exc)
        return self._advance(parts, made)

    def _plan(self, room: Room) -> list[Part]:
        """Go on with what is open, then with the next text of each call in turn."""
        parts: list[Part] = []
        if self._open is not None and not self._open.table.alive:  # the cache has lost it
            again = self._begin(self._open.call, self._open.ids)
            if again is None:
                return []
            self._open = again
        while room and (text := self._open or self._next()) is not None:
            self._open = text
            if not self._scheduler.enlarge((text.call.number, 0), text.table, len(text.ids)):
                break  # older requests hold what it needs next
            if not (count := room.take(text.num_done, min(text.left, self._scheduler.pool.chunk))):
                break
            part = Part(text, count)
            parts.append(part)
            if not part.is_last:
                break
            self._open = None
        return parts

    def _next(self) -> Text | None:
        for call in list(self._calls):
            self._calls.rotate(-1)
            if call.num_begun < len(call.texts):
                text = self._begin(call, call.texts[call.num_begun])
                call.num_begun += text is not None
                return text
        return None

    def _begin(self, call: EmbedCall, ids: tuple[int, ...]) -> Text | None:
        """None: there is no room in the cache yet."""
        table = self._scheduler.open((call.number, 0), len(ids))
        return None if table is None else Text(call, ids, Pooled(self._pooling), table)

    def _vectors(self, parts: list[Part], hidden: Any) -> list[tuple[float, ...] | EngineFailed | None]:
        """For each part that ends its text: the vector, or why there is none."""
        made: list[tuple[float, ...] | EngineFailed | None] = []
        for part, states in zip(parts, hidden.split([part.count for part in parts]), strict=True):
            part.text.pooled.add(states)
            try:
                made.append(part.text.pooled.vector() if part.is_last else None)
            except EngineFailed as exc:
                made.append(exc)
        return made

    def _advance(self, parts: list[Part], made: list[tuple[float, ...] | EngineFailed | None]) -> list[CallOver]:
        over: list[CallOver] = []
        for part, vector in zip(parts, made, strict=True):
            call = part.text.call
            is_last = part.is_last
            part.text.table.filled += part.count
            if is_last:
                self._release(part.text, poisoned=isinstance(vector, EngineFailed))
            if vector is None or call not in self._calls:
                continue
            if isinstance(vector, EngineFailed):
                over.append(self._end(call, vector))
                continue
            call.vectors.append(vector)
            if len(call.vectors) == len(call.texts):
                over.append(self._end(call))
        return over

    def _failed(self, parts: list[Part], exc: BaseException) -> list[CallOver]:
        error = errors.while_running(exc)
        if isinstance(error, DeviceLost):
            raise error  # which ends every request, not these calls alone
        calls = dict.fromkeys(part.text.call for part in parts)
        for part in parts:
            self._release(part.text, poisoned=True)
        over = [self._end(call, errors.again(error)) for call in calls]
        parts.clear()
        if isinstance(error, OutOfMemory):
            with contextlib.suppress(Exception):  # a broken device says so to the next request as well
                errors.free_cached_memory()
        return over

    def _end(self, call: EmbedCall, error: DrivetrainError | None = None) -> CallOver:
        self._calls.remove(call)
        if self._open is not None and self._open.call is call:
            self._release(self._open)
            self._open = None
        return CallOver(call, error)

    def _release(self, text: Text, *, poisoned: bool = False) -> None:
        if text.table.alive:
            self._scheduler.pool.release(text.table, poisoned=poisoned)

"""The `transformers` engine: `model.generate()` for any architecture the library knows, one request at a time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from drivetrain.core.engine import (
    EmbedItem,
    EngineInfo,
    EngineRequest,
    Health,
    ModelSpec,
    Pair,
    Progress,
    Step,
    StepSink,
)
from drivetrain.core.errors import Cancelled, DeviceLost, DrivetrainError, EngineFailed, OutOfMemory
from drivetrain.core.results import DeviceMemory, EngineCounts
from drivetrain.engines.base.channel import StepChannel
from drivetrain.engines.base.spinning import spin_briefly
from drivetrain.engines.base.thread import EngineThread, post
from drivetrain.engines.checkpoint import errors
from drivetrain.engines.checkpoint.settings import CheckpointSettings
from drivetrain.engines.checkpoint.step_threads import StepThreads, keep_to_usable_cores, round_alike

Item = TypeVar("Item")
Made = TypeVar("Made")


class TransformersEngine:
    """All work happens on one thread, job by job; the library's `generate()` cannot mix requests."""

    def __init__(self) -> None:
        self._thread = EngineThread("drivetrain-transformers")
        self._loaded: Any = None
        self._threads = StepThreads(None)
        self._running: dict[StepChannel, Any] = {}
        self._embedding = 0
        self._closed = False
        self._lost: DeviceLost | None = None
        self._last_progress = time.monotonic()
        self.steps_run = 0
        self._mask_s = 0.0

    @property
    def busy(self) -> bool:
        """Whether the engine's thread has anything to do."""
        return self._thread.busy

    async def load(self, spec: ModelSpec, progress: Progress) -> EngineInfo:
        loop = asyncio.get_running_loop()

        def report(what: str, share: float | None) -> None:
            post(loop, lambda: progress(what, share))

        def load() -> EngineInfo:
            try:
                spin_briefly(os.environ)
                yields = CheckpointSettings.of(spec.options).yield_cores
                alike = yields and round_alike(os.environ)
                keep_to_usable_cores()
                from drivetrain.engines.transformers import describe, loading

                self._loaded = loading.load(spec, report)
                self._threads = StepThreads.of(self._loaded.model.device, yields=yields)
                return describe.of_loaded(self._loaded, self.score, yields=yields, alike=alike)
            except Exception as exc:
                self._loaded = None
                raise errors.while_loading(exc, engine="transformers") from exc

        try:
            return await self._thread.call(load)
        except BaseException:
            await self.close()
            raise

    def generate(self, request: EngineRequest, sink: StepSink) -> StepChannel:
        from drivetrain.engines.transformers.generation import TransformersGeneration

        loop = asyncio.get_running_loop()
        channel = StepChannel(
            sink, on_abort=lambda: generation.abort(), on_finish=lambda index: generation.finish(index)
        )

        def emit(step: Step) -> None:
            post(loop, lambda: channel.push(step))

        if self._closed or self._loaded is None or self._lost is not None:
            channel.release(errors.again(self._lost) if self._lost else EngineFailed("the engine is closed"))
            return channel
        generation = TransformersGeneration(request, self._loaded, emit, self._count_step)
        self._running[channel] = generation
        outcome: list[DrivetrainError | None] = [EngineFailed("the engine's thread broke on this request")]
        self._thread.submit(
            lambda: outcome.append(self._run(generation)),
            then=lambda: post(loop, lambda: self._ended(channel, outcome[-1])),
        )
        return channel

    async def embed(self, items: Sequence[EmbedItem]) -> list[tuple[float, ...]]:
        from drivetrain.engines.transformers.embedding import embed

        return await self._each(items, lambda item: embed(self._loaded, item.token_ids))

    async def score(self, pairs: Sequence[Pair]) -> list[float]:
        """As in `PairScorer`."""
        from drivetrain.engines.transformers.embedding import score

        return await self._each(pairs, lambda pair: score(self._loaded, pair))

    async def _each(self, items: Sequence[Item], compute: Callable[[Item], Made]) -> list[Made]:
        """On the thread, in one job, which ends early if nobody waits for it any more."""
        given_up = threading.Event()

        def one(item: Item) -> Made:
            if given_up.is_set():
                raise Cancelled("nobody waits for these texts any more")
            self._count_step()
            return compute(item)

        def work() -> list[Made]:
            try:
                with self._threads.computing():
                    return [one(item) for item in items]
            except BaseException as exc:
                raise errors.while_running(exc) from exc

        self._embedding += 1
        try:
            return await self._thread.call(work, on_cancel=given_up.set)
        except DeviceLost as exc:
            self._lose_device(exc)
            raise
        finally:
            self._embedding -= 1

    def memory(self) -> tuple[DeviceMemory, ...]:
        from drivetrain.engines.checkpoint.devices import device_memory

        return device_memory(self._loaded.model.device) if self._loaded is not None else ()

    def health(self) -> Health:
        active = len(self._running) + self._embedding
        alive = not self._closed and self._lost is None and self._thread.alive
        detail = self._lost.message if self._lost is not None else ""
        counts = EngineCounts(mask_s=self._mask_s)
        return Health(alive, active, self._last_progress, detail, counts=counts, threads=self._threads.threads)

    async def close(self) -> None:
        self._closed = True
        for channel in list(self._running):
            channel.abort()
        try:
            await self._thread.close()
        finally:  # even if the thread hangs and nobody waits for it any longer
            self._loaded = None
            for channel in list(self._running):
                self._release(channel, None)

    def _count_step(self, mask_s: float = 0.0) -> None:
        """Between two steps."""
        self._threads.look()
        self.steps_run += 1
        self._mask_s += mask_s
        self._last_progress = time.monotonic()

    def _ended(self, channel: StepChannel, error: DrivetrainError | None) -> None:
        self._release(channel, error)
        if isinstance(error, DeviceLost):
            self._lose_device(error)

    def _lose_device(self, error: DeviceLost) -> None:
        """Nothing that still waits for the thread could be computed."""
        self._lost = error
        for channel, generation in list(self._running.items()):
            generation.abort()
            self._release(channel, errors.again(error))

    def _release(self, channel: StepChannel, error: DrivetrainError | None) -> None:
        self._running.pop(channel, None)
        channel.release(error)

    def _run(self, generation: Any) -> DrivetrainError | None:
        """On the engine's thread: how the request ended, None if well."""
        error: DrivetrainError | None = None
        try:
            with self._threads.computing():
                generation.run()
        except BaseException as exc:  # noqa: BLE001 - the boundary: everything becomes a typed ending, panics too
            error = errors.while_running(exc)
        if isinstance(error, OutOfMemory):
            with contextlib.suppress(Exception):  # a broken device says so to the next request as well
                errors.free_cached_memory()
        self._last_progress = time.monotonic()
        return error

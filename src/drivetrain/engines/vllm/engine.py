"""The `vllm` engine: any class that vLLM has, on its asynchronous engine in this process."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from drivetrain.core.engine import EmbedItem, EngineInfo, EngineRequest, Health, ModelSpec, Progress, Step, StepSink
from drivetrain.core.errors import DeviceLost, DrivetrainError, EngineFailed
from drivetrain.core.results import DeviceMemory
from drivetrain.core.tokenizer import Tokenizer
from drivetrain.engines.base.channel import StepChannel
from drivetrain.engines.base.thread import post
from drivetrain.engines.checkpoint.gguf import safetensors_folder
from drivetrain.engines.checkpoint.kinds import ModelKind
from drivetrain.engines.vllm import describe, errors
from drivetrain.engines.vllm.core import Core, Running
from drivetrain.engines.vllm.gauges import Gauges
from drivetrain.engines.vllm.generation import Generation
from drivetrain.engines.vllm.options import batch_size, engine_arguments, with_images

TOLD_S = 2.0
"""For which vLLM may take to answer that it has let go of what was running. It is shut down then all the same."""


class VllmEngine:
    """A task a request and one a choice, all on the event loop; vLLM computes in a process of its own.

    `make_core` starts vLLM on a folder, with its engine arguments.
    """

    def __init__(self, make_core: Callable[[str, Mapping[str, Any]], Running] = Core) -> None:
        self._make_core = make_core
        self._core: Running | None = None
        self._tokenizer: Tokenizer | None = None
        self._vocab_size = 0
        self._running: dict[StepChannel, asyncio.Task[None]] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count()
        self._closed = False
        self._lost = ""
        self._last_progress = time.monotonic()
        self.steps_run = 0

    @property
    def busy(self) -> bool:
        """Whether vLLM may still hold anything of a request."""
        return bool(self._running)

    async def load(self, spec: ModelSpec, progress: Progress) -> EngineInfo:
        try:
            return await self._load(spec, progress)
        except BaseException as exc:
            await self.close()
            if isinstance(exc, Exception):
                raise errors.while_loading(exc) from exc
            raise

    async def _load(self, spec: ModelSpec, progress: Progress) -> EngineInfo:
        loop = asyncio.get_running_loop()

        def report(what: str, share: float | None) -> None:
            post(loop, lambda: progress(what, share))

        arguments = engine_arguments(spec.options)
        folder = await asyncio.to_thread(safetensors_folder, spec, report, engine="vllm")
        progress("reading configuration and tokenizer", None)
        files = await asyncio.to_thread(describe.read, folder, spec)
        if files.kind is ModelKind.VISION:
            arguments = with_images(arguments)
        progress("starting vLLM (this takes a minute or more)", None)
        self._core = self._make_core(str(folder), arguments)
        self._core.on_death = self._died
        info = describe.of_loaded(files, await self._core.start(), batch_size(spec.options))
        self._tokenizer, self._vocab_size = info.tokenizer, info.vocab_size
        progress("loaded", 1.0)
        return info

    def generate(self, request: EngineRequest, sink: StepSink) -> StepChannel:
        channel = StepChannel(
            sink, on_abort=lambda: self._abort(channel), on_finish=lambda index: generation.finish(index)
        )
        if self._core is None or self._tokenizer is None or self._closed or self._lost or not self._core.alive:
            channel.release(EngineFailed("the engine is closed" if self._closed else self._lost or errors.DEAD))
            return channel

        def emit(step: Step) -> None:
            self.steps_run += 1
            self._last_progress = time.monotonic()
            channel.push(step)

        name = f"{request.request_id}-{next(self._numbers)}"
        generation = Generation(
            request, self._core, tokenizer=self._tokenizer, vocab_size=self._vocab_size, name=name, emit=emit
        )
        task = asyncio.create_task(generation.run(), name=f"vllm-{name}")
        self._running[channel] = task
        task.add_done_callback(lambda done: self._done(channel, generation, done))
        return channel

    async def embed(self, items: Sequence[EmbedItem]) -> list[tuple[float, ...]]:
        raise EngineFailed("the vllm engine gives no embeddings")

    def memory(self) -> tuple[DeviceMemory, ...]:
        """vLLM's processes hold the device, and do not say how much of it."""
        return ()

    def health(self) -> Health:
        alive = not self._closed and not self._lost and self._core is not None and self._core.alive
        seen = self._core.seen if self._core is not None else Gauges()
        return Health(
            alive,
            len(self._running),
            self._last_progress,
            "" if alive or self._closed else self._lost or errors.DEAD,
            kv_used=seen.kv_used if self._running else 0.0,  # an abort is followed by no step that would tell
            preemptions=seen.preemptions,
        )

    async def close(self) -> None:
        """What is still running ends first, so that vLLM is told of it; then vLLM ends, also if it does not answer."""
        self._closed = True
        for channel in list(self._running):
            channel.abort()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TOLD_S):
                await self._all_ended()
        if self._core is not None:
            await self._core.close()
        await self._all_ended()

    async def _all_ended(self) -> None:
        while tasks := [*self._running.values(), *self._leaving]:
            await asyncio.wait(tasks)
            await asyncio.sleep(0)  # for their callbacks

    def _abort(self, channel: StepChannel) -> None:
        task = self._running.get(channel)
        if task is not None:
            task.cancel()

    def _done(self, channel: StepChannel, generation: Generation, task: asyncio.Task[None]) -> None:
        """The one end of every request. Those that were left before their end are waited for in vLLM."""
        error = None if task.cancelled() else self._error(task.exception())
        if not generation.ids:
            self._release(channel, error)
            return
        leaving = asyncio.create_task(self._leave(channel, generation.ids, error))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    async def _leave(self, channel: StepChannel, ids: list[str], error: DrivetrainError | None) -> None:
        assert self._core is not None
        try:
            await self._core.let_go(ids)
        finally:
            self._release(channel, error)

    def _release(self, channel: StepChannel, error: DrivetrainError | None) -> None:
        self._running.pop(channel, None)
        self._last_progress = time.monotonic()
        channel.release(error)

    def _died(self) -> None:
        """Every request ends at once, whatever vLLM may still say of it."""
        for channel, task in list(self._running.items()):
            self._release(channel, EngineFailed(self._lost or errors.DEAD))
            task.cancel()

    def _error(self, exc: BaseException | None) -> DrivetrainError | None:
        """A device that is lost is lost to vLLM's process, which is ended; another one may use it."""
        error = None if exc is None else errors.while_running(exc)
        if not isinstance(error, DeviceLost):
            return error
        self._lost = error.message
        self._died()
        return EngineFailed(error.message)

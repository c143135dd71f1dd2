"""The `vllm` engine: any class that vLLM has, on its asynchronous engine in this process."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from drivetrain.core.engine import EmbedItem, EngineInfo, EngineRequest, Health, ModelSpec, Progress, Step, StepSink
from drivetrain.core.errors import DeviceLost, EngineFailed
from drivetrain.core.results import DeviceMemory, EngineCounts
from drivetrain.core.tokenizer import Tokenizer
from drivetrain.engines.base.channel import StepChannel
from drivetrain.engines.base.generation import Emit
from drivetrain.engines.base.tasks import RequestTasks, refused
from drivetrain.engines.base.thread import post
from drivetrain.engines.checkpoint.folder import CheckpointFolder
from drivetrain.engines.checkpoint.gguf import safetensors_folder
from drivetrain.engines.checkpoint.kinds import ModelKind
from drivetrain.engines.vllm import describe, errors
from drivetrain.engines.vllm.core import Core, Running
from drivetrain.engines.vllm.gauges import Gauges
from drivetrain.engines.vllm.generation import VllmGeneration
from drivetrain.engines.vllm.options import engine_arguments, with_images
from drivetrain.engines.vllm.settings import VllmSettings

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
        self._running = RequestTasks(errors.while_running, self._note_progress)
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

        arguments, settings = engine_arguments(spec.options), VllmSettings.of(spec.options)
        path = await asyncio.to_thread(safetensors_folder, spec, report, engine="vllm")
        progress("reading configuration and tokenizer", None)
        folder = CheckpointFolder(path=path, trust_remote_code=settings.trust_remote_code)
        files = await asyncio.to_thread(describe.read, folder)
        if files.kind is ModelKind.VISION:
            arguments = with_images(arguments)
        progress("starting vLLM (this takes a minute or more)", None)
        self._core = self._make_core(str(path), arguments)
        self._core.on_death = self._died
        info = describe.of_loaded(files, await self._core.start(), settings.max_batch)
        self._tokenizer, self._vocab_size = info.tokenizer, info.vocab_size
        progress("loaded", 1.0)
        return info

    def generate(self, request: EngineRequest, sink: StepSink) -> StepChannel:
        core, tokenizer = self._core, self._tokenizer
        if core is None or tokenizer is None or self._closed or self._lost or not core.alive:
            return refused(EngineFailed("the engine is closed" if self._closed else self._lost or errors.DEAD), sink)
        name = f"{request.request_id}-{next(self._numbers)}"

        def make(push: Emit) -> VllmGeneration:
            def emit(step: Step) -> None:
                self.steps_run += 1
                self._note_progress()
                push(step)

            return VllmGeneration(
                request,
                core,
                tokenizer=tokenizer,
                vocab_size=self._vocab_size,
                name=name,
                emit=emit,
                failed=self._note_failure,
                let_go=self._let_go,
            )

        return self._running.start(f"vllm-{name}", sink, make)

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
            counts=EngineCounts(preemptions=seen.preemptions),
        )

    async def close(self) -> None:
        """What is still running ends first, so that vLLM is told of it; then vLLM ends, also if it does not answer."""
        self._closed = True
        tasks = self._running.abort_all()
        if tasks:
            await asyncio.wait(tasks, timeout=TOLD_S)
        if self._core is not None:
            await self._core.close()
        if tasks:
            await asyncio.wait(tasks)

    async def _let_go(self, request_ids: list[str]) -> None:
        assert self._core is not None
        await self._core.let_go(request_ids)
        self._note_progress()

    def _note_progress(self) -> None:
        self._last_progress = time.monotonic()

    def _note_failure(self, exc: Exception) -> None:
        """A device that is lost is lost to vLLM's process, which is ended; another one may use it."""
        error = errors.while_running(exc)
        if isinstance(error, DeviceLost):
            self._lost = error.message
            self._died()

    def _died(self) -> None:
        """Every request ends at once, whatever vLLM may still say of it."""
        self._running.fail_all(lambda: EngineFailed(self._lost or errors.DEAD))

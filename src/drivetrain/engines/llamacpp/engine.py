"""The `llamacpp` engine: GGUF models through llama.cpp's server, token ids in and out, many requests at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from drivetrain.core.engine import (
    EmbedItem,
    EngineInfo,
    EngineRequest,
    Health,
    ModelSpec,
    Progress,
    StepSink,
    WeightsFormat,
)
from drivetrain.core.errors import DrivetrainError, EngineFailed, LoadFailed
from drivetrain.core.results import DeviceMemory
from drivetrain.engines.base.channel import StepChannel
from drivetrain.engines.base.tasks import RequestTasks, refused
from drivetrain.engines.llamacpp import errors
from drivetrain.engines.llamacpp.child.process import ServerProcess
from drivetrain.engines.llamacpp.embedding import LlamaCppEmbedder
from drivetrain.engines.llamacpp.generation import RunningServer
from drivetrain.engines.llamacpp.loading import describe, prepared
from drivetrain.engines.llamacpp.request import LlamaCppGeneration
from drivetrain.telemetry.memory import host_memory


class LlamaCppEngine:
    """llama.cpp runs in a child process; here there are only connections, one task a request and no thread."""

    def __init__(self) -> None:
        self._process: ServerProcess | None = None
        self._embedder: LlamaCppEmbedder | None = None
        self._served: RunningServer | None = None
        self._running = RequestTasks(self._error, self._note_progress)
        self._embedding = 0
        self._closed = False
        self._last_progress = time.monotonic()
        self.steps_run = 0

    @property
    def busy(self) -> bool:
        """Whether any request has not been let go yet."""
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
        if spec.format is not WeightsFormat.GGUF:
            raise LoadFailed("the llamacpp engine loads GGUF files only")
        progress("reading the model's metadata", None)
        model = await asyncio.to_thread(prepared, spec, progress)
        self._process = ServerProcess(model.launch, connections=model.connections)
        progress("loading the weights", None)
        await self._process.start_async()
        info = await describe(model, self._process)
        self._served = model.serve(self._process, info, self._count_step)
        if info.capabilities.embeddings:
            self._embedder = LlamaCppEmbedder(model.embedding_launch)
        progress("loaded", 1.0)
        return info

    def generate(self, request: EngineRequest, sink: StepSink) -> StepChannel:
        served = self._served
        if served is None or not self._is_alive():
            return refused(EngineFailed("llama.cpp is not running"), sink)
        return self._running.start(
            f"llamacpp-{request.request_id}", sink, lambda push: LlamaCppGeneration(request, served, push)
        )

    async def embed(self, items: Sequence[EmbedItem]) -> list[tuple[float, ...]]:
        if self._embedder is None or self._closed:
            raise EngineFailed("llama.cpp is not running")
        self._embedding += 1
        try:
            vectors = await self._embedder.embed([item.token_ids for item in items])
        except Exception as exc:
            raise errors.while_running(exc) from exc
        finally:
            self._embedding -= 1
        self._last_progress = time.monotonic()
        return vectors

    def memory(self) -> tuple[DeviceMemory, ...]:
        """Of llama.cpp's process, on the host."""
        if not self._is_alive():
            return ()
        assert self._process is not None
        return (host_memory(self._process.pid, "llama.cpp"),)

    def health(self) -> Health:
        detail = "" if self._closed or self._is_alive() else "llama.cpp's process has ended"
        return Health(
            self._is_alive(),
            len(self._running) + self._embedding,
            self._last_progress,
            detail,
            threads=self._process.threads if self._process is not None else None,
        )

    async def close(self) -> None:
        """The process ends first: whatever its slots held is gone with it."""
        self._closed = True
        tasks = self._running.abort_all()
        if self._process is not None:
            await asyncio.to_thread(self._process.stop)
        if self._embedder is not None:
            await self._embedder.close()
        if tasks:
            await asyncio.wait(tasks)

    def _is_alive(self) -> bool:
        return not self._closed and self._process is not None and self._process.alive

    def _count_step(self) -> None:
        self.steps_run += 1
        self._last_progress = time.monotonic()

    def _note_progress(self) -> None:
        self._last_progress = time.monotonic()

    def _error(self, exc: BaseException) -> DrivetrainError:
        if isinstance(exc, (OSError, EOFError)) and self._process is not None and not self._process.alive:
            died = self._process.death()
            died.__cause__ = exc
            exc = died
        return errors.while_running(exc)

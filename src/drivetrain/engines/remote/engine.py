"""The `remote` engine: models that other servers run. It has only connections and tasks, and no thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from drivetrain.core.capabilities import Capabilities
from drivetrain.core.engine import EmbedItem, EngineInfo, EngineRequest, Health, ModelSpec, Progress, StepSink
from drivetrain.core.errors import DrivetrainError, EngineFailed, InvalidSetting
from drivetrain.core.results import DeviceMemory
from drivetrain.engines.base.channel import StepChannel
from drivetrain.engines.base.tasks import RequestTasks, refused
from drivetrain.engines.remote import embedding, errors
from drivetrain.engines.remote.address import Key, Reference
from drivetrain.engines.remote.blocking import Asker
from drivetrain.engines.remote.dialects.base import Splitter, UpstreamFacts, UpstreamKind
from drivetrain.engines.remote.dialects.drivetrain import DrivetrainSplitter
from drivetrain.engines.remote.dialects.llamacpp import LlamaCppSplitter
from drivetrain.engines.remote.dialects.vllm_tokenizer import VllmSplitter
from drivetrain.engines.remote.generation import RemoteGeneration, RemoteModel
from drivetrain.engines.remote.pool import Pool
from drivetrain.engines.remote.probe import Prober
from drivetrain.engines.remote.settings import RemoteSettings
from drivetrain.engines.remote.tokenizer import NoSplitter, RemoteTokenizer
from drivetrain.engines.remote.wire import Timeouts

UPSTREAM = "upstream"
"""The option that names the upstreams and the model, for `Reference.parse`."""


class RemoteEngine:
    """`key` None: read from the environment at load. `timeouts` None: read from the settings."""

    def __init__(self, *, key: Key | None = None, timeouts: Timeouts | None = None) -> None:
        self._key = key
        self._timeouts = timeouts
        self._pool: Pool | None = None
        self._served: RemoteModel | None = None
        self._running = RequestTasks(errors.while_running, self._note_progress)
        self._embedding = set[asyncio.Task[list[tuple[float, ...]]]]()
        self._closed = False
        self._last_progress = time.monotonic()
        self.steps_run = 0

    @property
    def busy(self) -> bool:
        """Whether any request is not yet released."""
        return bool(self._running) or bool(self._embedding)

    @property
    def pool(self) -> Pool | None:
        """The upstreams, once they are known."""
        return self._pool

    async def load(self, spec: ModelSpec, progress: Progress) -> EngineInfo:
        try:
            return await self._load(spec, progress)
        except BaseException as exc:
            await self.close()
            if isinstance(exc, Exception):
                raise errors.while_loading(exc) from exc
            raise

    async def _load(self, spec: ModelSpec, progress: Progress) -> EngineInfo:
        reference = Reference.parse(str(spec.options.get(UPSTREAM, "")))
        if not reference.addresses or reference.model is None:
            raise InvalidSetting("the remote engine needs a URL and the name of a model there", param="model")
        key = self._key if self._key is not None else Key.of_environment()
        timeouts = self._timeouts or Timeouts.of(spec.options)
        progress("asking the upstream what it can do", None)
        prober = Prober(key, reference.model, timeouts, RemoteSettings.of(spec.options).context_length)
        self._pool = Pool(reference.addresses, prober)
        facts = await self._pool.open()
        asker = Asker(self._pool.askable, key, timeouts)
        tokenizer = RemoteTokenizer(facts, _splitter(facts, asker, reference.model))
        self._served = RemoteModel(self._pool, reference.model, key, timeouts, tokenizer.learn, self._count_step)
        progress("ready", 1.0)
        return _info(facts, tokenizer)

    def generate(self, request: EngineRequest, sink: StepSink) -> StepChannel:
        served = self._served
        if served is None or self._closed:
            return refused(EngineFailed("the engine is closed"), sink)
        return self._running.start(
            f"remote-{request.request_id}", sink, lambda push: RemoteGeneration(request, served, push)
        )

    async def embed(self, items: Sequence[EmbedItem]) -> list[tuple[float, ...]]:
        served = self._served
        if served is None or self._closed:
            raise EngineFailed("the engine is closed")
        task = asyncio.create_task(embedding.embedded(served, items), name="drivetrain-remote-embed")
        self._embedding.add(task)
        try:
            return await task  # cancelling this cancels the task and waits until it has closed its connection
        except asyncio.CancelledError:
            if task.cancelled() and not _is_cancelled():
                raise EngineFailed("the engine is closed") from None
            raise
        except DrivetrainError:
            raise
        except Exception as exc:
            raise errors.while_running(exc) from exc
        finally:
            self._embedding.discard(task)

    def memory(self) -> tuple[DeviceMemory, ...]:
        return ()

    def health(self) -> Health:
        """Alive as long as one upstream may be asked."""
        alive = not self._closed and self._pool is not None and self._pool.alive
        return Health(
            alive,
            len(self._running) + len(self._embedding),
            self._last_progress,
            "" if alive else "no upstream answers",
            mends_itself=True,
            upstreams=tuple(u.usable for u in self._pool.upstreams) if self._pool is not None else (),
        )

    async def close(self) -> None:
        self._closed = True
        tasks: list[asyncio.Task[Any]] = [*self._running.abort_all(), *self._embedding]
        for task in self._embedding:
            task.cancel()
        if self._pool is not None:
            await self._pool.close()
        if tasks:
            await asyncio.wait(tasks)

    def _count_step(self) -> None:
        self.steps_run += 1
        self._note_progress()

    def _note_progress(self) -> None:
        self._last_progress = time.monotonic()


def _is_cancelled() -> bool:
    """Whether the caller's own task is being cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _splitter(facts: UpstreamFacts, asker: Asker, model: str) -> Splitter:
    if not facts.tokens:
        return NoSplitter()
    if facts.kind is UpstreamKind.LLAMACPP:
        return LlamaCppSplitter(asker, facts.specials)
    return VllmSplitter(asker, model, facts) if facts.kind is UpstreamKind.VLLM else DrivetrainSplitter(asker, model)


def _info(facts: UpstreamFacts, tokenizer: RemoteTokenizer) -> EngineInfo:
    return EngineInfo(
        engine="remote",
        capabilities=Capabilities(
            parameters=facts.parameters,
            tokens=facts.tokens,
            embeddings=facts.embedding_size > 0,
            generation=facts.generation,
            context_length=facts.context_length,
            max_concurrency=facts.max_concurrency,
        ),
        tokenizer=tokenizer,
        eos_ids=facts.eos_ids,
        vocab_size=facts.vocab_size,
        architecture=facts.architecture,
        device="remote",
        dtype=facts.dtype,
        gives_pieces=True,
        embedding_size=facts.embedding_size,
        pooling=facts.pooling,
        stop=facts.stop,
        default_sampling=facts.default_sampling,
        notes=facts.notes,
        versions={"upstream": facts.kind.value},
    )

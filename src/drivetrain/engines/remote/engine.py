"""The `remote` engine: models that other servers run. Here are only connections, one task a request and no thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from drivetrain.core.capabilities import Capabilities
from drivetrain.core.engine import EmbedItem, EngineInfo, EngineRequest, Health, ModelSpec, Progress
from drivetrain.core.errors import DrivetrainError, EngineFailed, InvalidSetting, Unsupported
from drivetrain.core.results import DeviceMemory
from drivetrain.engines.channel import StepChannel
from drivetrain.engines.remote import errors
from drivetrain.engines.remote.address import Key, Reference
from drivetrain.engines.remote.blocking import Asker
from drivetrain.engines.remote.dialect import Facts, Kind, Splitter
from drivetrain.engines.remote.drivetrain_ids import DrivetrainSplitter
from drivetrain.engines.remote.generation import Generation, Served
from drivetrain.engines.remote.llamacpp_ids import LlamaCppSplitter
from drivetrain.engines.remote.pool import Pool
from drivetrain.engines.remote.probe import Prober
from drivetrain.engines.remote.tokenizer import NoSplitter, RemoteTokenizer
from drivetrain.engines.remote.wire import Timeouts

UPSTREAM = "upstream"
"""The option that names the upstreams and the model: `Reference.parse` reads it."""


class RemoteEngine:
    """`key` None: the one of the environment, read when it loads."""

    def __init__(self, *, key: Key | None = None, timeouts: Timeouts | None = None) -> None:
        self._key = key
        self._timeouts = timeouts or Timeouts()
        self._pool: Pool | None = None
        self._served: Served | None = None
        self._running: dict[StepChannel, asyncio.Task[None]] = {}
        self._closed = False
        self._last_progress = time.monotonic()
        self.steps_run = 0

    @property
    def busy(self) -> bool:
        """Whether any request has not been let go yet."""
        return bool(self._running)

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
        progress("asking the upstream what it can do", None)
        prober = Prober(key, reference.model, self._timeouts, _stated_context(spec))
        self._pool = Pool(reference.addresses, prober)
        facts = await self._pool.open()
        asker = Asker(self._pool.addresses, self._pool.suspect, key, self._timeouts)
        tokenizer = RemoteTokenizer(facts, _splitter(facts, asker, reference.model))
        self._served = Served(self._pool, key, self._timeouts, tokenizer.learn, self._count_step)
        progress("ready", 1.0)
        return _info(facts, tokenizer)

    def generate(self, request: EngineRequest) -> StepChannel:
        channel = StepChannel(on_abort=lambda: self._abort(channel), on_finish=lambda index: generation.finish(index))
        if self._served is None or self._closed:
            channel.release(EngineFailed("the engine is closed"))
            return channel
        generation = Generation(request, self._served, channel.push)
        task = asyncio.create_task(generation.run(), name=f"remote-{request.request_id}")
        self._running[channel] = task
        task.add_done_callback(lambda done: self._settle(channel, done))
        return channel

    async def embed(self, items: Sequence[EmbedItem]) -> list[tuple[float, ...]]:
        raise Unsupported("the remote engine gives no embeddings", param="input")

    def memory(self) -> tuple[DeviceMemory, ...]:
        return ()

    def health(self) -> Health:
        """Alive as long as one upstream may be asked."""
        alive = not self._closed and self._pool is not None and self._pool.alive
        return Health(alive, len(self._running), self._last_progress, "" if alive else "no upstream answers")

    async def close(self) -> None:
        self._closed = True
        tasks = list(self._running.values())
        for channel in list(self._running):
            channel.abort()
        if self._pool is not None:
            await self._pool.close()
        if tasks:
            await asyncio.wait(tasks)

    def _count_step(self) -> None:
        self.steps_run += 1
        self._last_progress = time.monotonic()

    def _abort(self, channel: StepChannel) -> None:
        task = self._running.get(channel)
        if task is not None:
            task.cancel()

    def _settle(self, channel: StepChannel, task: asyncio.Task[None]) -> None:
        """The one end of every request. Its connections are closed: its task ends only then."""
        self._running.pop(channel, None)
        self._last_progress = time.monotonic()
        channel.release(None if task.cancelled() else _error(task.exception()))


def _error(exc: BaseException | None) -> DrivetrainError | None:
    return None if exc is None else errors.while_running(exc)


def _stated_context(spec: ModelSpec) -> int | None:
    stated = spec.options.get("context_length")
    return None if stated is None else int(stated)


def _splitter(facts: Facts, asker: Asker, model: str) -> Splitter:
    if not facts.tokens:
        return NoSplitter()
    return LlamaCppSplitter(asker) if facts.kind is Kind.LLAMACPP else DrivetrainSplitter(asker, model)


def _info(facts: Facts, tokenizer: RemoteTokenizer) -> EngineInfo:
    return EngineInfo(
        engine="remote",
        capabilities=Capabilities(
            parameters=facts.parameters,
            tokens=facts.tokens,
            context_length=facts.context_length,
            max_concurrency=facts.max_concurrency,
        ),
        tokenizer=tokenizer,
        eos_ids=facts.eos_ids,
        vocab_size=facts.vocab_size,
        architecture=facts.architecture,
        device="remote",
        dtype=facts.dtype,
        stop=facts.stop,
        default_sampling=facts.default_sampling,
        notes=facts.notes,
        versions={"upstream": facts.kind.value},
    )

"""The worker: one loaded model behind one gate. The class that applications, the server and the commands talk to."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from drivetrain.core.build import build_request
from drivetrain.core.capabilities import Capabilities
from drivetrain.core.engine import Engine, EngineInfo, ModelSpec, Progress
from drivetrain.core.errors import (
    Cancelled,
    DeadlineExceeded,
    DrivetrainError,
    InvalidRequest,
    InvalidSetting,
    NotReady,
    Unsupported,
)
from drivetrain.core.messages import parse_messages
from drivetrain.core.parameters import PARAMETERS, check
from drivetrain.core.request import GenerateRequest, Overflow
from drivetrain.core.results import DeviceMemory, Embeddings, Metrics, Result, Usage
from drivetrain.core.status import Metadata, State, Status
from drivetrain.families.choose import Chosen, choose
from drivetrain.telemetry.memory import MemoryAverage, host_memory
from drivetrain.telemetry.tracing import NoTracer, Tracer
from drivetrain.worker.admission import Admission
from drivetrain.worker.defaults import Defaults
from drivetrain.worker.embedding import embed_inputs, tokenize_inputs
from drivetrain.worker.measure import measure
from drivetrain.worker.media import MediaLoader
from drivetrain.worker.metadata import describe
from drivetrain.worker.prepare import Preparer
from drivetrain.worker.run import Run
from drivetrain.worker.settings import Settings
from drivetrain.worker.stream import EventStream

_log = logging.getLogger(__name__)

WATCH_INTERVAL_S = 1.0
ABORT_WAIT_S = 10.0
"""An aborted request is free after one more step; an engine that needs longer is closed under it."""


class Worker:
    """`start` loads and makes it ready, once; `stop` drains and frees everything, and may be called again.

    All methods belong to the event loop that `start` ran on.
    """

    def __init__(
        self,
        engine: Engine,
        spec: ModelSpec,
        settings: Settings | None = None,
        *,
        tracer: Tracer | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self._engine = engine
        self._spec = spec
        self._tracer: Tracer = tracer or NoTracer()
        self._progress: Progress = progress or (lambda what, share: None)
        self._state = State.LOADING
        self._info: EngineInfo | None = None
        self._chosen: Chosen | None = None
        self._metadata: Metadata | None = None
        self._capabilities: Capabilities | None = None
        self._preparer: Preparer | None = None
        self._admission = Admission(max_running=0, max_waiting=0)
        self._executor: ThreadPoolExecutor | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._runs: set[Run] = set()
        self._all_read = asyncio.Event()
        self._all_read.set()
        self._endings: Counter[str] = Counter()
        self._usage = Usage()
        self._memory = MemoryAverage()

    # Lifecycle

    async def start(self) -> None:
        """Load the model. Raises what the engine's `load` raises, and is stopped then."""
        if self._state is not State.LOADING or self._info is not None:
            raise NotReady(f"the worker is {self._state.value}; a worker starts once")
        span = self._tracer.start("drivetrain.load")
        span.set("model", self._spec.name)
        try:
            self._info = await self._engine.load(self._spec, self._progress)
            self._make_ready(self._info)
        except BaseException as exc:
            span.end(exc)
            await self._shut()
            raise
        span.set("engine", self._info.engine)
        span.end()

    def _make_ready(self, info: EngineInfo) -> None:
        settings, tokenizer = self.settings, info.tokenizer
        chosen = choose(
            explicit=settings.family, tokenizer=tokenizer, architecture=info.architecture, name=self._spec.name
        )
        ends = {i for token in chosen.end_of_turn if (i := tokenizer.id_of(token)) is not None}
        eos_ids = info.eos_ids | ends
        capabilities = self._declare(info)
        defaults = Defaults(
            [
                ("settings", settings.sampling),
                ("generation_config", info.default_sampling),
                ("family", {**chosen.family.sampling, **_stated(max_tokens=chosen.family.max_tokens)}),
            ],
            capabilities.parameters,
        )
        self._executor = ThreadPoolExecutor(2, thread_name_prefix="drivetrain-prepare")
        self._preparer = Preparer(
            info=info,
            family=chosen.family,
            eos_ids=eos_ids,
            defaults=defaults,
            overflow=_overflow(settings.overflow),
            media=MediaLoader(capabilities.limits, allow_hosts=frozenset(settings.media_hosts)),
            executor=self._executor,
        )
        self._admission = Admission(
            max_running=capabilities.max_concurrency,
            max_waiting=settings.max_waiting,
            alive=lambda: self._engine.health().alive,
        )
        self._capabilities, self._chosen = capabilities, chosen
        self._metadata = describe(self._spec.name, info, chosen, eos_ids, defaults)
        self._watcher = asyncio.create_task(self._watch(), name="drivetrain-watch")
        self._state = State.READY

    def _declare(self, info: EngineInfo) -> Capabilities:
        concurrency = info.capabilities.max_concurrency
        if self.settings.max_running is not None:
            concurrency = min(self.settings.max_running, concurrency)
        return replace(info.capabilities, max_concurrency=max(1, concurrency), limits=self.settings.limits)

    async def drain(self, grace_s: float | None = None) -> None:
        """Take no more requests, let the running ones end, cancel what is left after the grace time."""
        if self._state is State.READY:
            self._state = State.DRAINING
        self._admission.close("the worker is shutting down; send this to another one")
        grace = self.settings.drain_s if grace_s is None else grace_s
        deadline = time.monotonic() + grace
        await self._admission.idle(grace)
        with contextlib.suppress(TimeoutError):  # the engine is done; readers may still be behind
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                await self._all_read.wait()
        for run in list(self._runs):
            run.interrupt(Cancelled("the worker shut down before this request was done"))
        await self._admission.idle(ABORT_WAIT_S)

    async def stop(self, grace_s: float | None = 0.0) -> None:
        """Drain, then free the model, its memory and its threads. Idempotent; a second call waits for the first.

        Once begun it goes on to the end, also if the call is cancelled.
        """
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(grace_s), name="drivetrain-stop")
        await asyncio.shield(self._stopping)

    async def _stop(self, grace_s: float | None) -> None:
        if self._state is State.STOPPED:
            return
        await self.drain(grace_s)
        await self._shut()

    async def _shut(self) -> None:
        self._state = State.STOPPED
        self._admission.close("the worker is stopped")
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        try:
            await self._engine.close()
        finally:
            if self._executor is not None:
                await asyncio.to_thread(self._executor.shutdown)

    async def __aenter__(self) -> Worker:
        if self._state is State.LOADING:
            await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    # What it is

    @property
    def state(self) -> State:
        return self._state

    @property
    def metadata(self) -> Metadata:
        if self._metadata is None:
            raise self._not_ready()
        return self._metadata

    @property
    def capabilities(self) -> Capabilities:
        if self._capabilities is None:
            raise self._not_ready()
        return self._capabilities

    @property
    def status(self) -> Status:
        health = self._engine.health()
        return Status(
            state=self._state,
            running=self._admission.running,
            waiting=self._admission.waiting,
            endings=dict(self._endings),
            prompt_tokens=self._usage.prompt_tokens,
            completion_tokens=self._usage.completion_tokens,
            engine_alive=health.alive,
            last_progress_s=max(0.0, time.monotonic() - health.last_progress),
        )

    # What it does

    def stream(self, **request: Any) -> EventStream:
        """The events of one answer; see `core/parameters.py` for what may be asked.

        A request that cannot be honoured raises here, at once; the work begins with the first event awaited.

            async for event in worker.stream(messages=[...], max_tokens=64): ...
        """
        return self.submit(build_request(request))

    def submit(self, request: GenerateRequest) -> EventStream:
        """The same for a request that is already built."""
        if self._preparer is None or self._info is None or self._capabilities is None:
            raise self._not_ready()
        check(request, self._capabilities)
        request_id = request.request_id or f"req-{secrets.token_hex(12)}"
        span = self._tracer.start("drivetrain.request", parent=request.trace_context)
        span.set("model", self._spec.name)
        span.set("request_id", request_id)
        run = Run(
            request,
            request_id=request_id,
            model=self._spec.name,
            engine=self._engine,
            info=self._info,
            admission=self._admission,
            preparer=self._preparer,
            observer=self,
            span=span,
            timeout_s=request.timeout_s or min(self.settings.timeout_s, self.settings.max_timeout_s),
            stream_interval=self.settings.stream_interval,
        )
        self._runs.add(run)
        self._all_read.clear()
        return EventStream(run)

    async def generate(self, **request: Any) -> Result:
        """The whole answer at once; the same text as the joined stream."""
        return await self.complete(build_request(request))

    async def complete(self, request: GenerateRequest) -> Result:
        async with self.submit(request) as stream:
            async for _ in stream:
                pass
            return stream.result()

    async def count_tokens(self, text: str | None = None, *, messages: Sequence[Any] | None = None) -> int:
        """How many tokens a prompt has, or a chat once it is rendered."""
        return len(await self.tokenize(text, messages=messages))

    async def tokenize(self, text: str | None = None, *, messages: Sequence[Any] | None = None) -> list[int]:
        """The ids of a prompt, or of a chat once it is rendered."""
        if self._preparer is None:
            raise self._not_ready()
        if (text is None) == (messages is None):
            raise InvalidRequest("exactly one of a text and messages is needed", param="text")
        parsed = parse_messages(messages) if messages is not None else None
        return await self._preparer.tokenize(parsed, text)

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens included by name."""
        if self._preparer is None:
            raise self._not_ready()
        return await self._preparer.detokenize(ids)

    async def embed(
        self, inputs: str | Sequence[str] | Sequence[Sequence[int]], *, timeout_s: float | None = None
    ) -> Embeddings:
        """A unit vector for each text (or list of token ids). How it is pooled stands in `metadata.pooling`."""
        if self._info is None or self._capabilities is None or self._preparer is None:
            raise self._not_ready()
        if not self._capabilities.embeddings:
            raise Unsupported("this model gives no embeddings", param="input")
        items = embed_inputs(inputs, self._capabilities.limits)
        if timeout_s is not None:
            PARAMETERS["timeout_s"].rule("timeout_s", timeout_s)
        limit = min(timeout_s or self.settings.timeout_s, self.settings.max_timeout_s)
        span = self._tracer.start("drivetrain.embed")
        error: BaseException | None = None
        try:
            async with asyncio.timeout(limit):
                made = await self._embed(items, self._info, self._preparer)
        except TimeoutError:
            error = DeadlineExceeded(f"the embeddings were not done within their {limit:g} seconds")
            raise error from None
        except BaseException as exc:
            error = exc
            raise
        finally:
            span.end(error)
            self._count(error)
        self._add_usage(made.usage)
        return made

    async def _embed(self, inputs: Sequence[str | tuple[int, ...]], info: EngineInfo, preparer: Preparer) -> Embeddings:
        """A cancelled call (a deadline too) holds its slot until the engine has let go of it."""
        slot = await self._admission.enter().wait()
        try:
            items = await preparer.on_thread(lambda: tokenize_inputs(inputs, info))
            vectors = await self._engine.embed(items)
        finally:
            slot.release()
        usage = Usage(prompt_tokens=sum(len(item.token_ids) for item in items))
        return Embeddings(self._spec.name, tuple(vectors), usage)

    # What it notes

    def ended(self, run: Run, error: DrivetrainError | None) -> Metrics:
        """Called by each run exactly once."""
        self._runs.discard(run)
        if not self._runs:
            self._all_read.set()
        self._count(error)
        self._add_usage(run.usage)
        now = self._memory_now()
        return measure(run, now, self._memory.add(now))

    def _count(self, error: BaseException | None) -> None:
        outcome = "finished"
        if error is not None:
            outcome = error.code if isinstance(error, DrivetrainError) else Cancelled.code
        self._endings[outcome] += 1

    def _add_usage(self, usage: Usage) -> None:
        self._usage = Usage(
            self._usage.prompt_tokens + usage.prompt_tokens, self._usage.completion_tokens + usage.completion_tokens
        )

    def _memory_now(self) -> tuple[DeviceMemory, ...]:
        """A device that is broken cannot say what it holds; that must not hide how the request ended."""
        try:
            return (host_memory(), *self._engine.memory())
        except Exception:  # noqa: BLE001 - a library's error of any kind; it is logged, and no ending hangs on it
            _log.exception("the memory of the device cannot be read")
            return ()

    async def _watch(self) -> None:
        """Cancel readers that have stopped reading, so that nobody's slow client holds a slot."""
        settings = self.settings
        while True:
            await asyncio.sleep(min(WATCH_INTERVAL_S, settings.reader_timeout_s / 4))
            for run in list(self._runs):
                idle_s = time.monotonic() - run.last_read
                if run.unread > settings.max_unread or (run.unread and idle_s > settings.reader_timeout_s):
                    run.interrupt(Cancelled(f"the reader took no event for {idle_s:.0f} seconds"))

    def _not_ready(self) -> NotReady:
        return NotReady(f"the worker is {self._state.value}", retry_after_s=5.0)


def _stated(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _overflow(text: str) -> Overflow:
    try:
        return Overflow(text)
    except ValueError:
        known = ", ".join(Overflow)
        raise InvalidSetting(f"overflow is {text!r}; it must be one of {known}", param="overflow") from None

"""The worker: one loaded model behind one gate. The class that applications, the server and the commands talk to."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from drivetrain.core.budget import check_vectors
from drivetrain.core.capabilities import Capabilities
from drivetrain.core.engine import Engine, EngineInfo, ModelSpec, Progress
from drivetrain.core.errors import (
    Cancelled,
    DeadlineExceeded,
    DrivetrainError,
    EngineFailed,
    InvalidRequest,
    InvalidSetting,
    NotReady,
)
from drivetrain.core.messages import parse_messages
from drivetrain.core.parameters import build_request, check
from drivetrain.core.request import GenerateRequest, Overflow
from drivetrain.core.results import DeviceMemory, Embeddings, Metrics, Result, Usage
from drivetrain.core.stats import Stats, ending
from drivetrain.core.status import Metadata, State, Status
from drivetrain.core.worker import EventSink
from drivetrain.families.choose import Chosen, choose
from drivetrain.telemetry.genai import Operation, error_type
from drivetrain.telemetry.ids import id_here, new_id
from drivetrain.telemetry.memory import MemoryAverage, host_memory
from drivetrain.telemetry.tracing import NoTracer, Tracer
from drivetrain.worker import logbook
from drivetrain.worker.admission import Admission
from drivetrain.worker.defaults import Defaults
from drivetrain.worker.embedding import check_embedding, tokenize_inputs
from drivetrain.worker.lane import TextThreads
from drivetrain.worker.media import MediaLoader
from drivetrain.worker.metadata import describe
from drivetrain.worker.pictures import PixelRoom
from drivetrain.worker.prepare import Preparer
from drivetrain.worker.revival import Reviver
from drivetrain.worker.run import Run
from drivetrain.worker.settings import Settings
from drivetrain.worker.stream import EventStream, Reader
from drivetrain.worker.supervisor import Supervisor
from drivetrain.worker.tokenizing import Tokenizing
from drivetrain.worker.tracing import EmbeddingTrace, Traces, operation_of

T = TypeVar("T")

_log = logging.getLogger(__name__)

WATCH_INTERVAL_S = 1.0
ABORT_WAIT_S = 2.0
"""An aborted request is free after one more step; an engine that needs longer is closed under it."""

COMPUTING = 2
"""Threads that prepare requests. More would only take the interpreter from one another."""

ASKING = 16
"""The same where another process or machine splits the texts, and the threads wait for it."""

MEMORY_AGE_S = 0.1
"""How old what is told of the memory may be: to ask the system takes as long as ten tokens, and a GPU's driver more."""


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
        remake: Callable[[], Engine] | None = None,
        tracer: Tracer | None = None,
        progress: Progress | None = None,
        stats: Stats | None = None,
    ) -> None:
        """`remake` gives another engine of the same kind, for when this one has failed. None: it is not replaced."""
        self.settings = settings or Settings()
        self._spec = spec
        self._traces = Traces(tracer or NoTracer(), spec.name)
        self._progress: Progress = progress or (lambda what, share: None)
        self._info: EngineInfo | None = None
        self._chosen: Chosen | None = None
        self._metadata: Metadata | None = None
        self._capabilities: Capabilities | None = None
        self._preparer: Preparer | None = None
        self._texts: TextThreads | None = None
        self._tokenizing: Tokenizing | None = None
        self._media: MediaLoader | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._runs: set[Run] = set()
        self._all_read = asyncio.Event()
        self._all_read.set()
        self._stats = stats or Stats()
        self._supervisor = Supervisor(
            engine,
            name=spec.name,
            stall_s=self.settings.stall_s,
            reviver=Reviver(remake, spec, self._progress) if remake is not None and self.settings.restart else None,
            max_waiting=self.settings.max_waiting,
            stats=self._stats,
            serve=self._make_ready,
            end_running=self._end_running,
        )
        self._admission = self._supervisor.admission
        self._memory = MemoryAverage()
        self._memory_read: tuple[DeviceMemory, ...] = ()
        self._memory_read_at = -MEMORY_AGE_S

    # Lifecycle

    async def start(self) -> None:
        """Load the model. Raises what the engine's `load` raises, and is stopped then."""
        if self.state is not State.LOADING or self._info is not None:
            raise NotReady(f"the worker is {self.state.value}; a worker starts once")
        span = self._traces.load()
        try:
            self._info = await self._engine.load(self._spec, self._progress)
            if self.state is not State.LOADING:
                raise NotReady("the worker was stopped while it loaded")
            self._supervisor.ready(self._info)
        except BaseException as exc:
            span.end(error_type=error_type(exc))
            await self._shut()
            raise
        self._traces.engine = self._info.engine
        span.set({"drivetrain.engine": self._info.engine})
        span.end()

    def _make_ready(self, info: EngineInfo) -> int:
        """For requests to the engine that this is told of. How many of them may run at once."""
        settings, tokenizer = self.settings, info.tokenizer
        chosen = self._choose(info)
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
        if self._texts is None:
            threads = max(COMPUTING, min(ASKING, capabilities.max_concurrency)) if tokenizer.waits else COMPUTING
            self._texts = TextThreads(num_prompts=threads, max_waiting=settings.max_waiting)
        if self._media is None:
            room = PixelRoom(settings.max_decoded_pixels)
            self._media = MediaLoader(capabilities.limits, room=room, allow_hosts=frozenset(settings.media_hosts))
        self._tokenizing = Tokenizing(
            info=info, capabilities=capabilities, family=self._choose(info).family, threads=self._texts
        )
        self._preparer = Preparer(
            info=info,
            capabilities=capabilities,
            family=chosen.family,
            eos_ids=eos_ids,
            defaults=defaults,
            overflow=_overflow(settings.overflow),
            media=self._media,
            threads=self._texts,
        )
        self._info, self._capabilities, self._chosen = info, capabilities, chosen
        self._metadata = describe(self._spec.name, info, chosen, eos_ids, defaults)
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch(), name="drivetrain-watch")
        return capabilities.max_concurrency

    def _choose(self, info: EngineInfo) -> Chosen:
        """Made anew for each that renders: a template renders one chat at a time, and no answer waits for others."""
        return choose(
            explicit=self.settings.family,
            tokenizer=info.tokenizer,
            architecture=info.architecture,
            name=self._spec.name,
        )

    def _declare(self, info: EngineInfo) -> Capabilities:
        concurrency = info.capabilities.max_concurrency
        if self.settings.max_running is not None:
            concurrency = min(self.settings.max_running, concurrency)
        return replace(info.capabilities, max_concurrency=max(1, concurrency), limits=self.settings.limits)

    async def drain(self, grace_s: float | None = None) -> None:
        """Take no more requests, let the running ones end, cancel what is left after the grace time."""
        restarting = self.state is State.RESTARTING
        if self.state in {State.READY, State.RESTARTING}:
            self._supervisor.state = State.DRAINING
        await self._supervisor.stop_reviving()
        if restarting:  # what the engine that failed still holds would be waited for in vain
            self._end_running("the engine failed, and the worker shuts down")
        self._admission.close("the worker is shutting down; send this to another one")
        grace = self.settings.drain_s if grace_s is None else grace_s
        deadline = time.monotonic() + grace
        await self._admission.idle(grace)
        with contextlib.suppress(TimeoutError):  # the engine is done; readers may still be behind
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                await self._all_read.wait()
        for run in list(self._runs):
            run.interrupt(Cancelled("the worker shut down before this request was done"))
        if not await self._admission.idle(ABORT_WAIT_S):
            await self._supervisor.close()

    async def stop(self, grace_s: float | None = 0.0) -> None:
        """Drain, then free the model, its memory and its threads. Idempotent; a second call waits for the first.

        Once begun it goes on to the end, also if the call is cancelled.
        """
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(grace_s), name="drivetrain-stop")
        await asyncio.shield(self._stopping)

    async def _stop(self, grace_s: float | None) -> None:
        if self.state is State.STOPPED:
            return
        await self.drain(grace_s)
        await self._shut()

    async def _shut(self) -> None:
        self._supervisor.state = State.STOPPED
        self._admission.close("the worker is stopped")
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        try:
            await self._supervisor.close()
        finally:
            if self._media is not None:
                self._media.close()
            if self._texts is not None:
                await asyncio.to_thread(self._texts.close)

    async def __aenter__(self) -> Worker:
        if self.state is State.LOADING:
            await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    # What it is

    @property
    def state(self) -> State:
        return self._supervisor.state

    @property
    def _engine(self) -> Engine:
        return self._supervisor.engine

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
        """How things stand now. This may be asked from any thread, also while requests come and go."""
        health = self._engine.health()
        return Status(
            state=self.state,
            running=self._admission.running,
            waiting=self._admission.waiting,
            max_waiting=self.settings.max_waiting,
            endings=dict(self._stats.endings),
            prompt_tokens=self._stats.prompt_tokens,
            completion_tokens=self._stats.completion_tokens,
            engine_alive=health.alive,
            last_progress_s=max(0.0, time.monotonic() - health.last_progress),
            kv_used=self._kv_used() if health.kv_used is None else health.kv_used,
            preemptions=self._stats.preemptions + self._supervisor.uncounted(health),
            upstreams=health.upstreams,
            lost=self._supervisor.lost,
            memory=self._memory_now(),
        )

    @property
    def stats(self) -> Stats:
        return self._stats

    def _kv_used(self) -> float:
        """What the running requests hold of what so many could hold, as far as can be seen from here."""
        if self._capabilities is None:
            return 0.0
        room = self._capabilities.max_concurrency * self._capabilities.context_length
        held = sum(run.usage.total_tokens for run in self._runs.copy())  # others come and go on the loop's thread
        return min(1.0, held / room) if room else 0.0

    # What it does

    def stream(self, **request: Any) -> EventStream:
        """The events of one answer; see `core/parameters.py` for what may be asked.

        A request that cannot be honoured raises here, at once; the work begins with the first event awaited.

            async for event in worker.stream(messages=[...], max_tokens=64): ...
        """
        return self._open(self._build(request))

    def _build(self, request: Mapping[str, Any]) -> GenerateRequest:
        try:
            return build_request(request)
        except DrivetrainError as exc:
            operation = Operation.CHAT if "messages" in request else Operation.TEXT_COMPLETION
            named = request.get("request_id")
            exc.request_id = named if named and isinstance(named, str) else new_id()
            self._traces.refuse(operation, exc, request.get("trace_context"))
            self._note_refusal(exc.request_id, exc)
            raise

    def _open(self, request: GenerateRequest) -> EventStream:
        reader = Reader()
        return EventStream(self._admitted(request, reader), reader)

    def submit(self, request: GenerateRequest, sink: EventSink) -> Run:
        """Begin: its events go to the sink. Raises at once what can be told without work."""
        run = self._admitted(request, sink)
        run.start()
        return run

    def _admitted(self, request: GenerateRequest, sink: EventSink) -> Run:
        if self._preparer is None or self._info is None or self._capabilities is None:
            raise self._not_ready(request.request_id or id_here())
        request_id = request.request_id or new_id()
        try:
            check(request, self._capabilities)
        except DrivetrainError as exc:
            exc.request_id = request_id
            self._traces.refuse(operation_of(request), exc, request.trace_context)
            self._note_refusal(request_id, exc)
            raise
        run = Run(
            request,
            sink,
            request_id=request_id,
            model=self._spec.name,
            host=self,
            trace=self._traces.request(request),
            timeout_s=request.timeout_s or min(self.settings.timeout_s, self.settings.max_timeout_s),
            stream_interval=self.settings.stream_interval,
        )
        self._runs.add(run)
        self._all_read.clear()
        return run

    async def generate(self, **request: Any) -> Result:
        """The whole answer at once; the same text as the joined stream."""
        return await self.complete(self._build(request))

    async def complete(self, request: GenerateRequest) -> Result:
        async with self._open(request) as stream:
            while await stream.batch():
                pass
            return stream.result()

    async def count_tokens(self, text: str | None = None, *, messages: Sequence[Any] | None = None) -> int:
        """How many tokens a prompt has, or a chat once it is rendered."""
        return len(await self.tokenize(text, messages=messages))

    async def tokenize(
        self,
        text: str | None = None,
        *,
        messages: Sequence[Any] | None = None,
        add_special_tokens: bool | None = None,
    ) -> list[int]:
        """The ids of a prompt, or of a chat once it is rendered.

        `add_special_tokens` is whether the tokenizer adds its own around the text, such as a BOS. None: as for an
        answer, which is yes for a prompt, and what its prompt form says for a chat.
        """
        if self._tokenizing is None:
            raise self._not_ready(id_here())
        if (text is None) == (messages is None):
            raise InvalidRequest("exactly one of a text and messages is needed", param="text")
        parsed = parse_messages(messages) if messages is not None else None
        work = self._tokenizing.tokenize(parsed, text, add_special_tokens=add_special_tokens)
        return await self._aside(work, len)

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens included by name."""
        if self._tokenizing is None:
            raise self._not_ready(id_here())
        return await self._aside(self._tokenizing.detokenize(ids), lambda text: len(ids))

    async def _aside(self, work: Coroutine[Any, Any, T], num_tokens: Callable[[T], int]) -> T:
        """What needs no slot: within the time that any request has, counted and logged as each is."""
        request_id, began = id_here(), time.monotonic()
        error: BaseException | None = None
        tokens = 0
        try:
            made = await _within(min(self.settings.timeout_s, self.settings.max_timeout_s), work, "the text was")
            tokens = num_tokens(made)
        except BaseException as exc:
            error = exc
            if isinstance(exc, DrivetrainError):
                exc.request_id = request_id
            raise
        finally:
            self._stats.endings[ending(error)] += 1
            logbook.tokenized(request_id, self._spec.name, error, tokens, time.monotonic() - began)
        return made

    async def embed(
        self,
        inputs: str | Sequence[str] | Sequence[Sequence[int]],
        *,
        timeout_s: float | None = None,
        trace_context: Mapping[str, str] | None = None,
    ) -> Embeddings:
        """A unit vector for each text (or list of token ids). How it is pooled stands in `metadata.pooling`."""
        if self._info is None or self._capabilities is None or self._texts is None:
            raise self._not_ready(id_here())
        trace = self._traces.embedding(trace_context)
        made: Embeddings | None = None
        error: BaseException | None = None
        request_id, began = id_here(), time.monotonic()
        try:
            items = check_embedding(inputs, timeout_s, self._capabilities)
            check_vectors(len(items), self._info.embedding_size, self._capabilities.limits)
            limit = min(timeout_s or self.settings.timeout_s, self.settings.max_timeout_s)
            made = await _within(limit, self._embed(items, trace), "the embeddings were")
        except BaseException as exc:
            error = exc
            if isinstance(exc, DrivetrainError):
                exc.request_id = request_id
            raise
        finally:
            trace.close(made, error)
            self._stats.endings[ending(error)] += 1
            if error is None or (isinstance(error, EngineFailed) and type(error) is not EngineFailed):
                self._supervisor.ended(error)  # that a text has no vector says nothing of the engine
            logbook.embedded(request_id, self._spec.name, error, made, time.monotonic() - began)
        self._stats.prompt_tokens += made.usage.prompt_tokens
        return made

    async def _embed(self, inputs: Sequence[str | tuple[int, ...]], trace: EmbeddingTrace) -> Embeddings:
        """A cancelled call (a deadline too) holds its slot until the engine has let go of it."""
        trace.phase("queue")
        entered = time.monotonic()
        slot = await self._admission.enter().wait()
        self._stats.queue_s.observe(time.monotonic() - entered)
        engine, info, threads = self.engine, self.info, self._texts  # of now: it may have waited for them
        assert threads is not None
        try:
            trace.phase("prepare")
            items = await tokenize_inputs(inputs, info, trace.context, threads)
            trace.phase("embed")
            vectors = await engine.embed(items)
        finally:
            slot.release()
            self._stats.request_s.observe(time.monotonic() - entered)
        usage = Usage(prompt_tokens=sum(len(item.token_ids) for item in items))
        return Embeddings(self._spec.name, tuple(vectors), usage)

    # For its runs

    @property
    def engine(self) -> Engine:
        return self._engine

    @property
    def info(self) -> EngineInfo:
        assert self._info is not None
        return self._info

    @property
    def preparer(self) -> Preparer:
        assert self._preparer is not None
        return self._preparer

    @property
    def admission(self) -> Admission:
        return self._admission

    def engine_failed(self) -> None:
        self._supervisor.look_soon()

    # What it notes

    def ended(self, run: Run, error: DrivetrainError | None) -> Metrics:
        """Called by each run exactly once."""
        self._runs.discard(run)
        if not self._runs:
            self._all_read.set()
        self._stats.count(run.times, run, error)
        if run.times.prepared is not None:
            self._supervisor.ended(error)
        now = self._memory_now()
        metrics = run.times.metrics(run.usage, now, self._memory.add(now))
        logbook.ended(run, error, metrics)
        return metrics

    def _note_refusal(self, request_id: str, error: DrivetrainError) -> None:
        """Of a request that has no run."""
        self._stats.endings[error.code] += 1
        logbook.refused(request_id, self._spec.name, error)

    def _memory_now(self) -> tuple[DeviceMemory, ...]:
        """A device that is broken cannot say what it holds; that must not hide how the request ended."""
        now = time.monotonic()
        if now - self._memory_read_at > MEMORY_AGE_S:
            self._memory_read_at = now
            read: tuple[DeviceMemory, ...] = ()
            try:
                read = (host_memory(), *self._engine.memory())
            except Exception:  # noqa: BLE001 - a library's error of any kind; it is logged, and no ending hangs on it
                _log.exception("the memory of the device cannot be read")
            self._memory_read = read
        return self._memory_read

    async def _watch(self) -> None:
        """Cancel readers that have stopped reading, so that nobody's slow client holds a slot; look at the engine."""
        settings = self.settings
        while True:
            await asyncio.sleep(min(WATCH_INTERVAL_S, settings.reader_timeout_s / 4))
            for run in list(self._runs):
                unread, idle_s = run.sink.unread, time.monotonic() - run.sink.last_read
                if unread > settings.max_unread or (unread and idle_s > settings.reader_timeout_s):
                    run.interrupt(Cancelled(f"the reader left {unread} events unread for {idle_s:.0f} seconds"))
            self._supervisor.look()

    def _end_running(self, why: str) -> None:
        """What runs does not outlive its engine. What waits in line waits for the next one, if there will be one.

        One that was given nothing yet goes on there too: as soon as the engine that failed has let go of it.
        """
        for run in list(self._runs):
            goes_on = self.state is State.RESTARTING and run.may_start_again
            if run.times.admitted is not None and not goes_on:
                run.interrupt(EngineFailed(why))

    def _not_ready(self, request_id: str | None = None) -> NotReady:
        """`request_id`: of a request, which has its line in the log then."""
        error = NotReady(f"the worker is {self.state.value}", retry_after_s=5.0)
        if request_id is not None:
            logbook.refused(request_id, self._spec.name, error)
        return error


async def _within(limit: float, work: Coroutine[Any, Any, T], what: str) -> T:
    try:
        async with asyncio.timeout(limit):
            return await work
    except TimeoutError:
        raise DeadlineExceeded(f"{what} not done within {limit:g} seconds") from None


def _stated(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _overflow(text: str) -> Overflow:
    try:
        return Overflow(text)
    except ValueError:
        known = ", ".join(Overflow)
        raise InvalidSetting(f"overflow is {text!r}; it must be one of {known}", param="overflow") from None

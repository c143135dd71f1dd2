"""The worker: one loaded model behind one gate. The class that applications, the server and the commands use."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from drivetrain.core.capabilities import Capabilities
from drivetrain.core.engine import Engine, EngineInfo, ModelSpec, Progress
from drivetrain.core.errors import Cancelled, DrivetrainError, EngineFailed, NotReady
from drivetrain.core.parameters import check
from drivetrain.core.request import GenerateRequest
from drivetrain.core.results import Embeddings, Metrics, Ranking
from drivetrain.core.stats import Stats
from drivetrain.core.status import Metadata, State, Status
from drivetrain.core.worker import EventSink
from drivetrain.telemetry.genai import Operation, error_type
from drivetrain.telemetry.ids import id_here, new_id
from drivetrain.telemetry.memory import MemoryAverage, RecentMemory
from drivetrain.telemetry.tracing import GenAiTracer, end_span
from drivetrain.worker import logbook
from drivetrain.worker.admission import Admission
from drivetrain.worker.embedding import Embedding, check_embedding
from drivetrain.worker.face import Face
from drivetrain.worker.health.revival import Reviver
from drivetrain.worker.health.supervisor import Supervisor
from drivetrain.worker.media.loader import MediaLoader
from drivetrain.worker.media.pictures import PixelRoom
from drivetrain.worker.model import LoadedModel, concurrency
from drivetrain.worker.prepare import Preparer
from drivetrain.worker.rankers import Ranker
from drivetrain.worker.receipts import ReceiptMaker
from drivetrain.worker.reranking import RerankCall, Reranking
from drivetrain.worker.run import Run
from drivetrain.worker.settings import Settings
from drivetrain.worker.stream import cancel_unread
from drivetrain.worker.text_threads import TextThreads
from drivetrain.worker.texts_run import TextsRun, TextsRuns
from drivetrain.worker.tracing import NoTrace, TextsTrace, operation_of

_log = logging.getLogger(__name__)

WATCH_INTERVAL_S = 1.0
ABORT_WAIT_S = 2.0
"""An aborted request is released after one more step; an engine that takes longer is closed anyway."""


class EngineWorker(Face):
    """`start` loads the model, once; `stop` drains and frees everything, and may be called again.

    Call all methods on the event loop that `start` ran on.
    """

    def __init__(
        self,
        engine: Engine,
        spec: ModelSpec,
        settings: Settings | None = None,
        *,
        remake: Callable[[], Engine] | None = None,
        tracer: GenAiTracer | None = None,
        progress: Progress | None = None,
        stats: Stats | None = None,
        warm: bool = False,
    ) -> None:
        """`remake` makes another engine of the same kind if this one fails. None: it is not replaced.

        `warm` does what the first constraint would have to wait for before the worker is ready.
        """
        super().__init__(spec.name, stats or Stats(), tracer)
        self.settings = settings or Settings()
        self._spec = spec
        self._warm = warm
        self._progress: Progress = progress or (lambda what, share: None)
        self._timeout_s = self.settings.default_timeout_s
        self._started = False
        self._model: LoadedModel | None = None
        self._first_model: LoadedModel | None = None
        """Between its loading and the worker's being ready."""
        self._texts: TextThreads | None = None
        self._media: MediaLoader | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._runs: set[Run] = set()
        self._all_read = asyncio.Event()
        self._all_read.set()
        self._supervisor = Supervisor(
            engine,
            name=spec.name,
            stall_s=self.settings.stall_s,
            reviver=Reviver(remake, spec, self._progress) if remake is not None and self.settings.restart else None,
            max_waiting=self.settings.max_waiting,
            stats=self.stats,
            serve=self._make_ready,
            end_running=self._end_running,
        )
        self._admission = self._supervisor.admission
        self._texts_runs = TextsRuns(self._traces, self._supervisor.ended)
        self._memory = RecentMemory(lambda: self._engine.memory())
        self._mean_memory = MemoryAverage()

    # Lifecycle

    async def start(self) -> None:
        """Load the model. Raises whatever the engine's `load` raises; the worker is stopped then."""
        if self.state is not State.LOADING or self._started:
            raise NotReady(f"the worker is {self.state.value}; a worker can be started only once")
        self._started = True
        span = self._traces.load()
        try:
            info = await self._engine.load(self._spec, self._progress)
            model = self._loaded_from(info)
            if self._warm:
                await self._warm_up(model)
            if self.state is not State.LOADING:
                raise NotReady("the worker was stopped while it loaded")
            self._first_model = model
            self._supervisor.ready(info)
        except BaseException as exc:
            end_span(span, error_type(exc))
            await self._shut()
            raise
        self._traces.engine = info.engine
        span.set_attribute("drivetrain.engine", info.engine)
        end_span(span)

    async def _warm_up(self, model: LoadedModel) -> None:
        """Whatever goes wrong, requests without a constraint can be served."""
        try:
            await model.preparer.warm()
        except DrivetrainError as exc:
            _log.warning("%s: constraints are not prepared: %s", self._name, exc.message)

    def _make_ready(self, info: EngineInfo) -> int:
        """Prepare to serve requests with this engine. Returns how many of them may run at once."""
        first, self._first_model = self._first_model, None
        self._model = first or self._loaded_from(info)
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch(), name="drivetrain-watch")
        return concurrency(info.capabilities, self.settings)

    def _loaded_from(self, info: EngineInfo) -> LoadedModel:
        settings = self.settings
        if self._texts is None or self._media is None:
            waits, room = info.tokenizer.waits, PixelRoom(settings.max_decoded_pixels)
            at_once = concurrency(info.capabilities, settings)
            self._texts = TextThreads(
                waits=waits,
                at_once=at_once,
                max_waiting=settings.max_waiting,
                grammar_library=info.grammar_library,
            )
            self._media = MediaLoader(settings.limits, room=room, allow_hosts=frozenset(settings.media_hosts))
        return LoadedModel.of(self._spec, info, settings, threads=self._texts, media=self._media, stats=self.stats)

    async def drain(self, grace_s: float | None = None) -> None:
        """Accept no more requests, let the running ones end, and cancel what is left after the grace period."""
        restarting = self.state is State.RESTARTING
        if self.state in {State.READY, State.RESTARTING}:
            self._supervisor.state = State.DRAINING
        await self._supervisor.stop_reviving()
        if restarting:  # requests still on the failed engine would be waited for in vain
            self._end_running("the engine failed, and the worker is shutting down")
        self._admission.close("the worker is shutting down; send the request to another one")
        grace = self.settings.drain_s if grace_s is None else grace_s
        deadline = time.monotonic() + grace
        await self._admission.idle(grace)
        with contextlib.suppress(TimeoutError):  # the engine is done; readers may still be behind
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                await self._all_read.wait()
        for request in self._requests:
            request.interrupt(Cancelled("the worker shut down before this request finished"))
        if not await self._admission.idle(ABORT_WAIT_S):
            await self._supervisor.close()

    async def stop(self, grace_s: float | None = 0.0) -> None:
        """Drain, then free the model, its memory and its threads. Idempotent; a second call waits for the first.

        Once begun, it runs to the end even if the call is cancelled.
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

    async def __aenter__(self) -> EngineWorker:
        if self.state is State.LOADING:
            await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    # State

    @property
    def state(self) -> State:
        return self._supervisor.state

    @property
    def _engine(self) -> Engine:
        return self._supervisor.engine

    @property
    def metadata(self) -> Metadata:
        return self._loaded().metadata

    @property
    def capabilities(self) -> Capabilities:
        return self._loaded().capabilities

    @property
    def status(self) -> Status:
        """The current state. May be read from any thread, also while requests come and go."""
        health = self._engine.health()
        return Status(
            state=self.state,
            running=self._admission.running,
            waiting=self._admission.waiting,
            max_waiting=self.settings.max_waiting,
            endings=dict(self.stats.endings),
            prompt_tokens=self.stats.prompt_tokens,
            completion_tokens=self.stats.completion_tokens,
            engine_alive=health.alive,
            last_progress_s=max(0.0, time.monotonic() - health.last_progress),
            kv_used=self._kv_used() if health.kv_used is None else health.kv_used,
            kv_blocks=health.kv_blocks,
            counts=self._supervisor.counted_by(health),
            threads=health.threads,
            upstreams=health.upstreams,
            lost=self._supervisor.lost,
            memory=self._memory.now(),
        )

    def _kv_used(self) -> float:
        """An estimate for engines that do not say: tokens of the running requests over the most there could be."""
        if self._model is None:
            return 0.0
        room = self.capabilities.max_concurrency * self.capabilities.context_length
        held = sum(run.usage.total_tokens for run in self._runs.copy())  # the loop's thread may change the set
        return min(1.0, held / room) if room else 0.0

    @property
    def _requests(self) -> Sequence[Run | TextsRun[Any, Any]]:
        return (*self._runs, *self._texts_runs.open)

    # Requests: the rest is in `Face`

    def submit(self, request: GenerateRequest, sink: EventSink) -> Run:
        """Begin; events go to the sink. Raises at once what can be told without work."""
        run = self._admitted(request, sink)
        run.start()
        return run

    def _admitted(self, request: GenerateRequest, sink: EventSink) -> Run:
        model = self._loaded(request.request_id or id_here())
        request_id = request.request_id or new_id()
        try:
            check(request, model.capabilities)
        except DrivetrainError as exc:
            self._refuse(exc, request_id, operation_of(request), request.trace_context)
            raise
        run = Run(
            request,
            sink,
            request_id=request_id,
            model=self._name,
            host=self,
            trace=self._traces.request(request),
            timeout_s=request.timeout_s or self._timeout_s,
            stream_interval=self.settings.stream_interval,
        )
        self._runs.add(run)
        self._all_read.clear()
        return run

    def _tokenize(
        self,
        text: str | None,
        asked: GenerateRequest | None,
        *,
        add_special_tokens: bool | None,
        request_id: str,
    ) -> Awaitable[list[int]]:
        return self._loaded(request_id).tokenizing.tokenize(text, asked, add_special_tokens=add_special_tokens)

    def _detokenize(self, ids: Sequence[int], *, request_id: str) -> Awaitable[str]:
        return self._loaded(request_id).tokenizing.detokenize(ids)

    def _embed(
        self, inputs: Any, *, timeout_s: float | None, trace_context: Mapping[str, str] | None, request_id: str
    ) -> Awaitable[Embeddings]:
        model, threads = self._loaded(request_id), self._texts
        assert threads is not None

        def begin(trace: TextsTrace | NoTrace) -> Embedding:
            items = check_embedding(inputs, timeout_s, model.capabilities, size=model.info.embedding_size)
            return Embedding(items, model=self._name, host=self, threads=threads, trace=trace)

        return self._texts_runs.made(begin, Operation.EMBEDDINGS, trace_context, timeout_s or self._timeout_s)

    def _rerank(self, call: RerankCall, *, request_id: str) -> Awaitable[Ranking]:
        model, threads = self._loaded(request_id), self._texts
        assert threads is not None

        def begin(trace: TextsTrace | NoTrace) -> Reranking:
            texts = call.check(model.capabilities)
            return Reranking(call, texts, model=self._name, host=self, threads=threads, trace=trace)

        timeout_s = call.timeout_s or self._timeout_s
        return self._texts_runs.made(begin, Operation.RERANK, call.trace_context, timeout_s)

    # For its runs

    @property
    def engine(self) -> Engine:
        return self._engine

    @property
    def info(self) -> EngineInfo:
        return self._loaded().info

    @property
    def preparer(self) -> Preparer:
        return self._loaded().preparer

    @property
    def receipts(self) -> ReceiptMaker:
        return self._loaded().receipts

    @property
    def ranker(self) -> Ranker | None:
        return self._loaded().ranker

    @property
    def admission(self) -> Admission:
        return self._admission

    def engine_failed(self) -> None:
        self._supervisor.look_soon()

    def ended(self, run: Run, error: DrivetrainError | None) -> Metrics:
        """Called by each run exactly once."""
        self._runs.discard(run)
        if not self._runs:
            self._all_read.set()
        self.stats.count(run.times, run, error)
        if run.times.prepared is not None:
            self._supervisor.ended(error)
        now = self._memory.now()
        metrics = run.times.metrics(run.usage, now, self._mean_memory.add(now))
        logbook.ended(run, error, metrics, run.request.constraint)
        return metrics

    async def _watch(self) -> None:
        """Cancel requests whose readers stopped reading, so that no slow client holds a slot; check the engine."""
        settings = self.settings
        while True:
            await asyncio.sleep(min(WATCH_INTERVAL_S, settings.reader_timeout_s / 4))
            cancel_unread(self._runs, max_unread=settings.max_unread, timeout_s=settings.reader_timeout_s)
            self._supervisor.look()

    def _end_running(self, why: str) -> None:
        """Running requests do not outlive their engine. Waiting ones wait for the next engine, if there will be one.

        A request that has given out nothing yet continues there too, once the failed engine has released it.
        """
        for request in self._requests:
            goes_on = self.state is State.RESTARTING and request.may_start_again
            if request.times.admitted is not None and not goes_on:
                request.interrupt(EngineFailed(why))

    def _loaded(self, request_id: str | None = None) -> LoadedModel:
        """With a `request_id`, that request is logged as refused if no model is loaded."""
        if self._model is not None:
            return self._model
        error = NotReady(f"the worker is {self.state.value}", retry_after_s=5.0)
        if request_id is not None:
            logbook.refused(request_id, self._name, error)
        raise error

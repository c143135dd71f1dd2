"""The worker port over a deployment handle: one model, however many replicas it has."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from drivetrain.core.capabilities import Capabilities
from drivetrain.core.errors import Cancelled, DrivetrainError, NotReady, Unsupported
from drivetrain.core.kinds import String
from drivetrain.core.parameters import check
from drivetrain.core.request import GenerateRequest
from drivetrain.core.results import Embeddings, Ranking
from drivetrain.core.stats import Stats
from drivetrain.core.status import Metadata, State, Status
from drivetrain.core.worker import EventSink
from drivetrain.scale.ray import protocol
from drivetrain.scale.ray.event_link import EventServer
from drivetrain.scale.ray.handle_call import HandleCall, one_answer
from drivetrain.scale.ray.handle_run import HandleRun
from drivetrain.scale.ray.prefix_affinity import prefix_of
from drivetrain.scale.ray.reports import ReplicaReport, ReplicaReports
from drivetrain.telemetry.ids import id_here
from drivetrain.worker import logbook
from drivetrain.worker.embedding import check_embedding
from drivetrain.worker.face import Face
from drivetrain.worker.reranking import RerankCall
from drivetrain.worker.stream import cancel_unread
from drivetrain.worker.tracing import operation_of

T = TypeVar("T")

POLL_S = 2.0
"""Between two polls of the replicas; a tenth of it while the last one to report took no requests."""

SILENCE_S = 15.0
"""After this long without a sign of life there is no replica. A poll waits for a free one, so events count as well."""

WATCH_INTERVAL_S = 1.0

ENDS_WITHIN_S = 10.0
"""So long may callers take to hear that their calls were ended."""

_log = logging.getLogger(__name__)


class Handle(Protocol):
    """A `ray.serve.handle.DeploymentHandle` of a `Replica`."""

    def options(self, *, stream: bool) -> Any: ...


class HandleWorker(Face):
    """Counts what goes through this handle: requests that have had events are `running`, the others are `waiting`.
    Embeddings and rankings, of which nothing comes before the end, are `running` from the start.

    All methods belong to the event loop that `start` ran on.
    """

    def __init__(self, handle: Handle, name: str, *, host: str = "") -> None:
        """`host` is this machine's address in the cluster, to which replicas send events. Without it they go by Ray."""
        super().__init__(name, Stats())
        self._event_server = EventServer(host)
        self._calls: Any = handle
        self._streams: Any = handle.options(stream=True)
        self._state = State.LOADING
        """Of this handle. It is ready once a replica has reported, whatever state that replica is in."""
        self._latest: ReplicaReport | None = None
        self._reports = ReplicaReports()
        self._last_sign_at = time.monotonic()
        """Of a replica: a report, or an item of a request that is gone."""
        self._last_event_at = 0.0
        """Of the requests that are gone."""
        self._found = asyncio.Event()
        self._runs: set[HandleRun] = set()
        self._engine_calls: set[HandleCall[Any]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._tasks: list[asyncio.Task[None]] = []

    # Lifecycle

    def start(self) -> None:
        """Begin to poll replicas. Requests are `NotReady` until one has reported."""
        self._tasks = [asyncio.create_task(self._poll_forever()), asyncio.create_task(self._watch_readers())]

    async def ready(self) -> None:
        """Return once a replica has reported."""
        await self._found.wait()

    async def drain(self, grace_s: float | None = None) -> None:
        """Take no more requests, let the running ones end, and cancel what is left after the grace time."""
        if self._state in {State.LOADING, State.READY}:
            self._state = State.DRAINING
        grace = grace_s if grace_s is not None else self._latest.terms.drain_s if self._latest is not None else 0.0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self._idle.wait()
        runs, why = list(self._runs), "the worker shut down before this request finished"
        for run in runs:
            run.cancel(why)
        for call in self._engine_calls:
            call.interrupt(Cancelled(why))
        for run in runs:
            await run.released()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ENDS_WITHIN_S):
                await self._idle.wait()

    async def stop(self, grace_s: float | None = 0.0) -> None:
        """Stop using the handle. The replicas stay: they belong to Serve."""
        await self.drain(grace_s)
        self._state = State.STOPPED
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._event_server.close()

    async def _poll_forever(self) -> None:
        await self._event_server.open()
        while True:
            await self._poll()
            if self._state is State.READY and not self._busy and self._silent_s > SILENCE_S:
                self._state = State.LOADING
            await asyncio.sleep(POLL_S if self._is_well else POLL_S / 10)

    async def _poll(self) -> None:
        try:
            async with asyncio.timeout(SILENCE_S):
                report = protocol.loads(ReplicaReport, await one_answer(self._calls, "describe"))
        except TimeoutError:
            return
        except Exception as exc:  # noqa: BLE001 - whatever another process does, there is a next poll
            _log.warning("a replica of %s did not report its health: %s", self._name, type(exc).__name__)
            return
        self._latest, self._last_sign_at = report, time.monotonic()
        self._reports.add(report, self._last_sign_at)
        self.stats.restarts, self.stats.engine = self._reports.restarts, self._reports.counts
        self._found.set()
        if self._state is State.LOADING:
            self._state = State.READY

    @property
    def _is_well(self) -> bool:
        """By the latest report: Serve asks a replica that takes no requests only if all are so."""
        latest = self._latest
        return self._state is State.READY and latest is not None and latest.status.state is State.READY

    @property
    def _busy(self) -> bool:
        """Ray ends the calls of a lost replica. So while one runs there is a replica, and a poll has only to wait."""
        return any(run.begun and not run.ended for run in self._runs)

    @property
    def _silent_s(self) -> float:
        return time.monotonic() - max([self._last_sign_at, *(run.last_item_at for run in self._runs)])

    async def _watch_readers(self) -> None:
        """Cancel readers that have stopped reading: a replica sends events whether anybody takes them or not."""
        while True:
            await self._found.wait()
            terms = self._report.terms
            await asyncio.sleep(min(WATCH_INTERVAL_S, terms.reader_timeout_s / 4))
            cancel_unread(self._runs, max_unread=terms.max_unread, timeout_s=terms.reader_timeout_s)

    # What it is

    @property
    def state(self) -> State:
        """While replicas report, that of the best one. Requests go out in any state: a replica may have recovered."""
        return self._reports.state if self._state is State.READY else self._state

    @property
    def metadata(self) -> Metadata:
        return self._report.metadata

    @property
    def capabilities(self) -> Capabilities:
        return self._report.capabilities

    @property
    def status(self) -> Status:
        latest = self._latest.status if self._latest is not None else None
        begun = sum(run.begun for run in self._runs)
        return Status(
            state=self.state,
            running=begun + len(self._engine_calls),
            waiting=len(self._runs) - begun,
            endings=dict(self.stats.endings),
            prompt_tokens=self.stats.prompt_tokens,
            completion_tokens=self.stats.completion_tokens,
            engine_alive=self._state in {State.READY, State.DRAINING} and self._reports.engine_alive,
            last_progress_s=max(0.0, time.monotonic() - self._last_progress_at),
            kv_used=latest.kv_used if latest is not None else 0.0,
            kv_blocks=latest.kv_blocks if latest is not None else None,
            counts=self.stats.engine,
            threads=latest.threads if latest is not None else None,
            upstreams=latest.upstreams if latest is not None else (),
            memory=latest.memory if latest is not None else (),
        )

    @property
    def _last_progress_at(self) -> float:
        """By the reports, and by the events that come over this handle. A report alone is no progress."""
        reported = self._reports.last_progress()
        events = [self._last_event_at, *(run.last_item_at for run in self._runs if run.begun)]
        return max(reported if reported is not None else self._last_sign_at, *events)

    @property
    def _report(self) -> ReplicaReport:
        if self._latest is None:
            raise self._not_ready()
        return self._latest

    def _report_if_ready(self, request_id: str) -> ReplicaReport:
        if self._latest is None or self._state is not State.READY:
            raise self._not_ready(request_id)
        return self._latest

    # What it does; the rest is in `Face`

    def submit(self, request: GenerateRequest, sink: EventSink) -> HandleRun:
        run = self._admitted(request, sink)
        run.start()
        return run

    def _admitted(self, request: GenerateRequest, sink: EventSink) -> HandleRun:
        request_id = request.request_id or id_here()
        latest = self._latest
        if latest is None or self._state is State.LOADING:
            raise self._not_ready(request_id)
        try:
            check(request, latest.capabilities)
            _refuse_paths(request)
        except DrivetrainError as exc:
            self._refuse(exc, request_id, operation_of(request), request.trace_context)
            raise
        named, prefix = request.having(request_id=request_id), prefix_of(request)
        run = HandleRun(
            request,
            sink,
            request_id=request_id,
            model=self._name,
            send=lambda reply_to: self._send(named, prefix, reply_to),
            event_server=self._event_server,
            observer=self,
            timeout_s=request.timeout_s or latest.terms.timeout_s,
        )
        self._runs.add(run)
        self._idle.clear()
        return run

    def _send(self, request: GenerateRequest, prefix: tuple[int, ...], reply_to: protocol.ReplyTo | None) -> Any:
        if self._state is not State.READY:
            raise self._not_ready()
        return self._streams.submit.remote(protocol.dump_call(request, reply_to), prefix)

    def _tokenize(
        self,
        text: str | None,
        asked: GenerateRequest | None,
        *,
        add_special_tokens: bool | None,
        request_id: str,
    ) -> Awaitable[list[int]]:
        limit = self._report_if_ready(request_id).terms.timeout_s
        return self._ids(text, (text, asked, add_special_tokens, request_id), limit)

    async def _ids(self, text: str | None, arguments: tuple[Any, ...], limit_s: float) -> list[int]:
        """The text is checked here: as JSON, bytes would arrive as text."""
        if text is not None:
            String().judge("text", text)
        return await self._ask(list[int], "tokenize", arguments, limit_s)

    def _detokenize(self, ids: Sequence[int], *, request_id: str) -> Awaitable[str]:
        return self._ask(str, "detokenize", (ids, request_id), self._report_if_ready(request_id).terms.timeout_s)

    def _embed(
        self, inputs: Any, *, timeout_s: float | None, trace_context: Mapping[str, str] | None, request_id: str
    ) -> Awaitable[Embeddings]:
        return self._vectors(self._report_if_ready(request_id), inputs, timeout_s, trace_context, request_id)

    async def _vectors(
        self,
        report: ReplicaReport,
        inputs: Any,
        timeout_s: float | None,
        trace_context: Mapping[str, str] | None,
        request_id: str,
    ) -> Embeddings:
        items = check_embedding(inputs, timeout_s, report.capabilities, size=report.metadata.embedding_size)
        arguments = (items, timeout_s, trace_context, request_id)
        return await self._ask_engine(Embeddings, "embed", arguments, timeout_s or report.terms.timeout_s)

    def _rerank(self, call: RerankCall, *, request_id: str) -> Awaitable[Ranking]:
        return self._scores(self._report_if_ready(request_id), call, request_id)

    async def _scores(self, report: ReplicaReport, call: RerankCall, request_id: str) -> Ranking:
        call.check(report.capabilities)
        return await self._ask_engine(Ranking, "rerank", (call, request_id), call.timeout_s or report.terms.timeout_s)

    async def _ask(self, hint: type[T], method: str, arguments: Any, limit_s: float) -> T:
        return await HandleCall(self._calls, hint, method, arguments, limit_s).answer()

    async def _ask_engine(self, hint: type[T], method: str, arguments: Any, limit_s: float) -> T:
        """Of what takes slots, as an answer does: it is counted while it runs, and `drain` waits for it."""
        call = HandleCall(self._calls, hint, method, arguments, limit_s)
        self._engine_calls.add(call)
        self._idle.clear()
        try:
            return await call.answer()
        finally:
            self._engine_calls.discard(call)
            self._note_idle()

    # What it notes

    def released(self, run: HandleRun) -> None:
        """As `Observer`."""
        self._last_sign_at = max(self._last_sign_at, run.last_item_at)
        if run.begun:
            self._last_event_at = max(self._last_event_at, run.last_item_at)
        self._runs.discard(run)
        self._note_idle()

    def _note_idle(self) -> None:
        if not self._runs and not self._engine_calls:
            self._idle.set()

    def _not_ready(self, request_id: str | None = None) -> NotReady:
        """With the `request_id` of a request, this logs its line."""
        what = "no replica answers yet" if self._state is State.LOADING else f"the worker is {self._state.value}"
        error = NotReady(what, retry_after_s=5.0)
        if request_id is not None:
            logbook.refused(request_id, self._name, error)
        return error


def _refuse_paths(request: GenerateRequest) -> None:
    images = [image for message in request.messages or () for image in message.images]
    if any(image.path is not None for image in (*(request.images or ()), *images)):
        raise Unsupported(
            "a path names a file on this machine, not on the replica's; send the bytes instead", param="images"
        )

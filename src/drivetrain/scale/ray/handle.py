"""The worker port over a deployment handle: one model, however many replicas it has."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from drivetrain.core.capabilities import Capabilities
from drivetrain.core.errors import Cancelled, DeadlineExceeded, DrivetrainError, NotReady, Unsupported
from drivetrain.core.kinds import String
from drivetrain.core.messages import Message
from drivetrain.core.parameters import check
from drivetrain.core.request import GenerateRequest
from drivetrain.core.results import Embeddings
from drivetrain.core.stats import Stats
from drivetrain.core.status import Metadata, State, Status
from drivetrain.core.worker import EventSink
from drivetrain.scale.ray import protocol
from drivetrain.scale.ray.errors import FOREIGN, LOST, translated
from drivetrain.scale.ray.event_link import EventServer
from drivetrain.scale.ray.handle_run import ATTEMPTS, HandleRun
from drivetrain.scale.ray.prefix import prefix_of
from drivetrain.scale.ray.replica import Description
from drivetrain.scale.ray.reports import ReplicaReports
from drivetrain.telemetry.ids import id_here
from drivetrain.worker import logbook
from drivetrain.worker.embedding import check_embedding
from drivetrain.worker.face import Face
from drivetrain.worker.stream import cancel_unread
from drivetrain.worker.tracing import operation_of

T = TypeVar("T")

LOOK_S = 2.0
"""Between two looks at the replicas; a tenth of it while the last one to answer took no requests."""

SILENCE_S = 15.0
"""Without a word of any replica for so long there is none. A look waits for a free one, so events are words too."""

WATCH_S = 1.0

_log = logging.getLogger(__name__)


class Handle(Protocol):
    """A `ray.serve.handle.DeploymentHandle` of a `Replica`."""

    def options(self, *, stream: bool) -> Any: ...


class HandleWorker(Face):
    """What it counts is what went through this handle: `running` has begun, `waiting` has not, and neither is released.

    All methods belong to the event loop that `start` ran on.
    """

    def __init__(self, handle: Handle, name: str, *, host: str = "") -> None:
        """`host` is the address of this machine in the cluster, where replicas bring their events; none: by Ray."""
        super().__init__(name, Stats())
        self._inlet = EventServer(host)
        self._calls: Any = handle
        self._streams: Any = handle.options(stream=True)
        self._state = State.LOADING
        """Whether this handle takes requests: where a replica answers, it does, whatever the replicas' engines do."""
        self._said: Description | None = None
        self._words = ReplicaReports()
        self._heard = time.monotonic()
        self._moved = 0.0
        self._answered = asyncio.Event()
        self._runs: set[HandleRun] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._tasks: list[asyncio.Task[None]] = []

    # Lifecycle

    def start(self) -> None:
        """Begin to look for replicas; requests are `NotReady` until one has answered."""
        self._tasks = [asyncio.create_task(self._look_forever()), asyncio.create_task(self._watch_readers())]

    async def ready(self) -> None:
        """Return once a replica has answered."""
        await self._answered.wait()

    async def drain(self, grace_s: float | None = None) -> None:
        """Take no more requests, let the running ones end, cancel what is left after the grace time."""
        if self._state in {State.LOADING, State.READY}:
            self._state = State.DRAINING
        grace = grace_s if grace_s is not None else self._said.terms.drain_s if self._said is not None else 0.0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self._idle.wait()
        runs = list(self._runs)
        for run in runs:
            run.interrupt(Cancelled("the worker shut down before this request finished"))
        for run in runs:
            await run.released()

    async def stop(self, grace_s: float | None = 0.0) -> None:
        """Let go of the handle. The replicas stay: they belong to Serve."""
        await self.drain(grace_s)
        self._state = State.STOPPED
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._inlet.close()

    async def _look_forever(self) -> None:
        await self._inlet.open()
        while True:
            await self._look()
            if self._state is State.READY and not self._busy and time.monotonic() - self._last_word > SILENCE_S:
                self._state = State.LOADING
            await asyncio.sleep(LOOK_S if self._all_well else LOOK_S / 10)

    async def _look(self) -> None:
        try:
            async with asyncio.timeout(SILENCE_S):
                said = protocol.loads(Description, await self._answer("describe"))
        except TimeoutError:
            return
        except Exception as exc:  # noqa: BLE001 - whatever another process says or does not say: there is a next look
            _log.warning("a replica of %s did not report its health: %s", self._name, type(exc).__name__)
            return
        self._said, self._heard = said, time.monotonic()
        self._words.hear(said, self._heard)
        self.stats.restarts, self.stats.preemptions = self._words.restarts, self._words.preemptions
        self._answered.set()
        if self._state is State.LOADING:
            self._state = State.READY

    @property
    def _all_well(self) -> bool:
        """As far as the last word goes: it is of one that takes requests, if there is such a one."""
        said = self._said
        return self._state is State.READY and said is not None and said.status.state is State.READY

    @property
    def _busy(self) -> bool:
        """Ray ends what runs in a replica that is lost. So where something runs, a look that waits has to wait."""
        return any(run.begun and not run.ended for run in self._runs)

    @property
    def _last_word(self) -> float:
        return max([self._heard, *(run.last_heard for run in self._runs)])

    async def _watch_readers(self) -> None:
        """Cancel readers that have stopped reading: the events of a replica come whether anybody takes them or not."""
        while True:
            await self._answered.wait()
            terms = self._description.terms
            await asyncio.sleep(min(WATCH_S, terms.reader_timeout_s / 4))
            cancel_unread(self._runs, max_unread=terms.max_unread, timeout_s=terms.reader_timeout_s)

    # What it is

    @property
    def state(self) -> State:
        """While replicas answer, that of the best of them. Requests are sent to them in any: one may have come back."""
        return self._words.state if self._state is State.READY else self._state

    @property
    def metadata(self) -> Metadata:
        return self._description.metadata

    @property
    def capabilities(self) -> Capabilities:
        return self._description.capabilities

    @property
    def status(self) -> Status:
        said = self._said.status if self._said is not None else None
        begun = sum(run.begun for run in self._runs)
        return Status(
            state=self.state,
            running=begun,
            waiting=len(self._runs) - begun,
            endings=dict(self.stats.endings),
            prompt_tokens=self.stats.prompt_tokens,
            completion_tokens=self.stats.completion_tokens,
            engine_alive=self._state in {State.READY, State.DRAINING} and self._words.engine_alive,
            last_progress_s=max(0.0, time.monotonic() - self._last_progress),
            kv_used=said.kv_used if said is not None else 0.0,
            preemptions=self.stats.preemptions,
            upstreams=said.upstreams if said is not None else (),
            memory=said.memory if said is not None else (),
        )

    @property
    def _last_progress(self) -> float:
        """By what the replicas say, and by the answers that come over this handle: that a replica answers is none."""
        told = self._words.last_progress()
        moved = [self._moved, *(run.last_heard for run in self._runs if run.begun)]
        return max(told if told is not None else self._heard, *moved)

    @property
    def _description(self) -> Description:
        if self._said is None:
            raise self._not_ready()
        return self._said

    def _serving(self, request_id: str) -> Description:
        if self._said is None or self._state is not State.READY:
            raise self._not_ready(request_id)
        return self._said

    # What it does: the rest of it is in `Face`

    def submit(self, request: GenerateRequest, sink: EventSink) -> HandleRun:
        run = self._admitted(request, sink)
        run.start()
        return run

    def _admitted(self, request: GenerateRequest, sink: EventSink) -> HandleRun:
        request_id = request.request_id or id_here()
        said = self._said
        if said is None or self._state is State.LOADING:
            raise self._not_ready(request_id)
        try:
            check(request, said.capabilities)
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
            call=lambda reply: self._call(named, prefix, reply),
            inlet=self._inlet,
            observer=self,
            timeout_s=request.timeout_s or said.terms.timeout_s,
        )
        self._runs.add(run)
        self._idle.clear()
        return run

    def _call(self, request: GenerateRequest, prefix: tuple[int, ...], reply: protocol.ReplyTo | None) -> Any:
        if self._state is not State.READY:
            raise self._not_ready()
        return self._streams.submit.remote(protocol.dump_call(request, reply), prefix)

    def _tokenize(
        self,
        text: str | None,
        messages: tuple[Message, ...] | None,
        *,
        add_special_tokens: bool | None,
        request_id: str,
    ) -> Awaitable[list[int]]:
        limit = self._serving(request_id).terms.timeout_s
        return self._ids(text, (text, messages, add_special_tokens, request_id), limit)

    async def _ids(self, text: str | None, asked: tuple[Any, ...], limit_s: float) -> list[int]:
        """Judged here: what is no text would be one once it has crossed as JSON."""
        if text is not None:
            String().judge("text", text)
        return await self._ask(list[int], "tokenize", asked, limit_s)

    def _detokenize(self, ids: Sequence[int], *, request_id: str) -> Awaitable[str]:
        return self._ask(str, "detokenize", (ids, request_id), self._serving(request_id).terms.timeout_s)

    def _embed(
        self, inputs: Any, *, timeout_s: float | None, trace_context: Mapping[str, str] | None, request_id: str
    ) -> Awaitable[Embeddings]:
        return self._vectors(self._serving(request_id), inputs, timeout_s, trace_context, request_id)

    async def _vectors(
        self,
        said: Description,
        inputs: Any,
        timeout_s: float | None,
        trace_context: Mapping[str, str] | None,
        request_id: str,
    ) -> Embeddings:
        items = check_embedding(inputs, timeout_s, said.capabilities, size=said.metadata.embedding_size)
        asked = (items, timeout_s, trace_context, request_id)
        return await self._ask(Embeddings, "embed", asked, timeout_s or said.terms.timeout_s)

    async def _ask(self, hint: type[T], method: str, arguments: Any, limit_s: float) -> T:
        """A call with one answer. It goes to another replica when the first one is lost: nobody saw anything of it."""
        call = protocol.dumps(arguments)
        try:
            async with asyncio.timeout(limit_s):
                for _ in range(ATTEMPTS - 1):
                    with contextlib.suppress(*LOST):
                        return protocol.load_answer(hint, await self._answer(method, call))
                return protocol.load_answer(hint, await self._answer(method, call))
        except TimeoutError:
            raise DeadlineExceeded(f"there was no answer within {limit_s:g} seconds") from None
        except FOREIGN as exc:
            raise translated(exc) from exc

    async def _answer(self, method: str, *call: bytes) -> bytes:
        response = getattr(self._calls, method).remote(*call)
        try:
            answer: bytes = await response
        except asyncio.CancelledError:
            response.cancel()
            raise
        return answer

    # What it notes

    def released(self, run: HandleRun) -> None:
        """Called by each run once, when no replica holds anything of it any more."""
        self._heard = max(self._heard, run.last_heard)
        if run.begun:
            self._moved = max(self._moved, run.last_heard)
        self._runs.discard(run)
        if not self._runs:
            self._idle.set()

    def _not_ready(self, request_id: str | None = None) -> NotReady:
        """`request_id`: of a request, which has its line in the log then."""
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

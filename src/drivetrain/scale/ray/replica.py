"""One worker in one replica: it starts, says how it is, streams, and drains before it goes. Knows no Ray."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from drivetrain import assembly
from drivetrain.core.capabilities import Capabilities
from drivetrain.core.errors import DrivetrainError, EngineFailed, NotReady
from drivetrain.core.events import Event, Finished
from drivetrain.core.messages import Message
from drivetrain.core.status import Metadata, State, Status
from drivetrain.scale.ray import protocol
from drivetrain.scale.ray.event_link import EventClient, Route
from drivetrain.telemetry.ids import HTTP_REQUEST_ID
from drivetrain.telemetry.tracing import Tracer
from drivetrain.worker.stream import EventStream, Reader
from drivetrain.worker.worker import EngineWorker

RESTART_S = 600.0
"""An engine that has not come back after so long comes back nowhere: a new replica may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a handle has to keep to on the caller's side, where the readers are: settings of the worker."""

    timeout_s: float
    drain_s: float
    reader_timeout_s: float
    max_unread: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What a replica says of itself. In a deployment the metadata, capabilities and terms are those of all replicas."""

    metadata: Metadata
    capabilities: Capabilities
    terms: Terms
    status: Status
    restarts: int = 0
    """How often its engine had failed and was loaded again."""
    replica: str = ""


class RoutingStats(TypedDict):
    """What a replica tells routers through Serve."""

    away: bool
    """It takes nothing now: its engine is being started again."""


class Replica:
    """Bytes in, bytes out, by the rules of `wire`. An error of ours is an answer, never an exception of Ray's."""

    def __init__(self, model: str, settings: Mapping[str, Any]) -> None:
        self._model = model
        self._settings = dict(settings)
        self._worker: EngineWorker | None = None
        self._outlets = EventClient()
        self._name = secrets.token_hex(8)
        self._well = time.monotonic()

    async def start(self, tracer: Tracer | None = None) -> None:
        """Called by whoever makes the replica; it takes no request before."""
        self._worker = await assembly.Worker.open(self._model, tracer=tracer, **self._settings)

    async def check_health(self) -> None:
        """Raises where the engine has ended for good, and so has the replica replaced. The worker mends what it can."""
        state, now = self.worker.state, time.monotonic()
        if state is State.FAILED:
            raise EngineFailed("the engine stopped")
        if state is not State.RESTARTING:
            self._well = now
        elif now - self._well > RESTART_S:
            raise EngineFailed(f"the engine has not recovered for {now - self._well:.0f} seconds")

    def record_routing_stats(self) -> RoutingStats:
        return RoutingStats(away=self.worker.state in {State.RESTARTING, State.FAILED})

    async def stop(self) -> None:
        """Let what runs end within the worker's grace, then free everything."""
        if self._worker is not None:
            await self._worker.stop(None)
        self._outlets.close()

    @property
    def worker(self) -> EngineWorker:
        assert self._worker is not None, "this replica has not started yet"
        return self._worker

    async def describe(self) -> bytes:
        worker, settings = self.worker, self.worker.settings
        terms = Terms(
            timeout_s=settings.default_timeout_s,
            drain_s=settings.drain_s,
            reader_timeout_s=settings.reader_timeout_s,
            max_unread=settings.max_unread,
        )
        description = Description(
            metadata=worker.metadata,
            capabilities=worker.capabilities,
            terms=terms,
            status=worker.status,
            restarts=worker.stats.restarts,
            replica=self._name,
        )
        return protocol.dumps(description)

    async def submit(self, call: bytes, prefix: Sequence[int] = ()) -> AsyncIterator[bytes]:
        """The events of one answer; what came together is one item, and an error is the last one.

        Items go over the link that the call names; only where there is none, they are what this gives. `prefix` is for
        the router alone. Cancelling the call ends the request; when it has ended, its slot is free.
        """
        request, reply = protocol.load_call(call)
        way = await self._outlets.way(reply)
        reader, link = Reader(), None if way is None else _ByLink(way)
        try:
            if self.worker.state is State.RESTARTING:  # it could wait here, but others may take it at once
                raise NotReady("the engine of this replica is restarting", retry_after_s=5.0)
            run = self.worker.submit(request, link or reader)
        except DrivetrainError as exc:
            yield protocol.dump_failure(exc)
            return
        async with EventStream(run, reader) as stream:
            if link is not None:
                await link.ended.wait()
                if not link.there:
                    yield protocol.dump_failure(NotReady("the connection to the caller was lost", retry_after_s=1.0))
                return
            try:
                while events := await stream.batch():
                    yield protocol.dump_events(events)
            except DrivetrainError as exc:
                yield protocol.dump_failure(exc)

    async def embed(self, call: bytes) -> bytes:
        inputs, timeout_s, trace_context, request_id = protocol.loads(list[Any], call)
        HTTP_REQUEST_ID.set(request_id)  # so that its lines in the logs here and at the caller can be told to be one
        return await _answer(self.worker.embed(inputs, timeout_s=timeout_s, trace_context=trace_context))

    async def tokenize(self, call: bytes) -> bytes:
        text, messages, special, request_id = protocol.loads(
            tuple[str | None, tuple[Message, ...] | None, bool | None, str], call
        )
        HTTP_REQUEST_ID.set(request_id)
        return await _answer(self.worker.tokenize(text, messages=messages, add_special_tokens=special))

    async def detokenize(self, call: bytes) -> bytes:
        ids, request_id = protocol.loads(list[Any], call)
        HTTP_REQUEST_ID.set(request_id)
        return await _answer(self.worker.detokenize(ids))


class _ByLink:
    """The sink of a request whose events go over the link."""

    unread = 0
    """What waits for a caller that does not read is the link's business."""

    def __init__(self, way: Route) -> None:
        self._way = way
        self.there = True
        self.ended = asyncio.Event()

    @property
    def last_read(self) -> float:
        return time.monotonic()

    def take(self, events: Sequence[Event]) -> None:
        self._send(protocol.dump_events(events), ends=isinstance(events[-1], Finished))

    def fail(self, error: DrivetrainError) -> None:
        self._send(protocol.dump_failure(error), ends=True)

    def _send(self, item: bytes, *, ends: bool) -> None:
        self.there = self._way.send(item) and self.there
        if ends or not self.there:
            self.ended.set()


async def _answer(work: Awaitable[Any]) -> bytes:
    try:
        return protocol.dump_answer(await work)
    except DrivetrainError as exc:
        return protocol.dump_answer(exc)

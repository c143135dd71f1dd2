"""One worker in one replica: it starts, reports, streams, and drains before it goes. Knows no Ray."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from typing import Any

from drivetrain import assembly
from drivetrain.core.errors import DrivetrainError, EngineFailed, NotReady
from drivetrain.core.events import Event, Finished
from drivetrain.core.request import GenerateRequest
from drivetrain.core.status import State
from drivetrain.scale.ray import protocol
from drivetrain.scale.ray.event_link import EventClient, Route
from drivetrain.scale.ray.observability import observing
from drivetrain.scale.ray.reports import ReplicaReport, RoutingStats, Terms
from drivetrain.telemetry.ids import HTTP_REQUEST_ID
from drivetrain.telemetry.tracing import GenAiTracer
from drivetrain.worker.reranking import RerankCall
from drivetrain.worker.stream import EventStream, Reader
from drivetrain.worker.worker import EngineWorker

RESTART_S = 600.0
"""An engine that has not recovered by then will not recover here; a new replica may do better."""


class Replica:
    """Bytes in, bytes out, as `protocol` writes them. An error of ours is an answer, never an exception of Ray's."""

    def __init__(self, model: str, settings: Mapping[str, Any]) -> None:
        self._model = model
        self._settings = dict(settings)
        self._worker: EngineWorker | None = None
        self._event_client = EventClient()
        self._name = secrets.token_hex(8)
        self._healthy_at = time.monotonic()

    async def start(self, tracer: GenAiTracer | None = None) -> None:
        """Called by whoever makes the replica, before any request."""
        self._worker = await assembly.Worker.open(self._model, tracer=tracer, **self._settings)

    async def check_health(self) -> None:
        """Raise if the engine has ended for good, so that Serve replaces the replica. The worker mends what it can."""
        state, now = self.worker.state, time.monotonic()
        if state is State.FAILED:
            raise EngineFailed("the engine stopped")
        if state is not State.RESTARTING:
            self._healthy_at = now
        elif now - self._healthy_at > RESTART_S:
            raise EngineFailed(f"the engine has not recovered for {now - self._healthy_at:.0f} seconds")

    def record_routing_stats(self) -> RoutingStats:
        return RoutingStats(away=self.worker.state in {State.RESTARTING, State.FAILED})

    async def stop(self) -> None:
        """Let running requests end within the worker's grace time, then free everything."""
        if self._worker is not None:
            await self._worker.stop(None)
        self._event_client.close()

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
        report = ReplicaReport(
            metadata=worker.metadata,
            capabilities=worker.capabilities,
            terms=terms,
            status=worker.status,
            restarts=worker.stats.restarts,
            replica=self._name,
        )
        return protocol.dumps(report)

    async def submit(self, call: bytes, prefix: Sequence[int] = ()) -> AsyncIterator[bytes]:
        """The events of one answer. Each item holds those that came together; an error is the last item.

        Items go over the link that the call names, and are yielded only if there is none. `prefix` is for the router.
        Cancelling the call ends the request. Once the call has ended, its slot is free.
        """
        request, reply_to = protocol.load_call(call)
        route = await self._event_client.route(reply_to)
        reader, sink = Reader(), None if route is None else _RouteSink(route)
        try:
            if self.worker.state is State.RESTARTING:  # it could wait here, but other replicas may take it at once
                raise NotReady("the engine of this replica is restarting", retry_after_s=5.0)
            run = self.worker.submit(request, sink or reader)
        except DrivetrainError as exc:
            yield protocol.dump_failure(exc)
            return
        async with EventStream(run, reader) as stream:
            if sink is not None:
                await sink.ended.wait()
                if not sink.connected:
                    yield protocol.dump_failure(NotReady("the connection to the caller was lost", retry_after_s=1.0))
                return
            try:
                while events := await stream.batch():
                    yield protocol.dump_events(events)
            except DrivetrainError as exc:
                yield protocol.dump_failure(exc)

    async def embed(self, call: bytes) -> bytes:
        inputs, timeout_s, trace_context, request_id = protocol.loads(list[Any], call)
        HTTP_REQUEST_ID.set(request_id)  # the caller's, so that log lines here and there can be matched
        return await _answer(self.worker.embed(inputs, timeout_s=timeout_s, trace_context=trace_context))

    async def rerank(self, data: bytes) -> bytes:
        call, request_id = protocol.loads(tuple[RerankCall, str], data)
        HTTP_REQUEST_ID.set(request_id)
        return await _answer(self.worker.rerank(**{field.name: getattr(call, field.name) for field in fields(call)}))

    async def tokenize(self, call: bytes) -> bytes:
        text, asked, special, request_id = protocol.loads(
            tuple[str | None, GenerateRequest | None, bool | None, str], call
        )
        HTTP_REQUEST_ID.set(request_id)
        said = {} if asked is None else asked.given()
        return await _answer(self.worker.tokenize(text, **said, add_special_tokens=special))

    async def detokenize(self, call: bytes) -> bytes:
        ids, request_id = protocol.loads(list[Any], call)
        HTTP_REQUEST_ID.set(request_id)
        return await _answer(self.worker.detokenize(ids))


class ServedReplica(Replica):
    """As Serve makes it and takes it down: it waits for the running calls, then for `__del__`."""

    async def __init__(  # type: ignore[misc] # Serve awaits it
        self, model: str, settings: Mapping[str, Any], observability: Mapping[str, Any]
    ) -> None:
        super().__init__(model, settings)
        self._stack = ExitStack()
        await self.start(self._stack.enter_context(observing(observability)))

    async def __del__(self) -> None:
        await self.stop()
        self._stack.close()


class _RouteSink:
    """The sink of a request whose events go over the link."""

    unread = 0
    """The link itself bounds what waits for a caller that does not read."""

    def __init__(self, route: Route) -> None:
        self._route = route
        self.connected = True
        self.ended = asyncio.Event()

    @property
    def last_read(self) -> float:
        return time.monotonic()

    def take(self, events: Sequence[Event]) -> None:
        self._send(protocol.dump_events(events), ends=isinstance(events[-1], Finished))

    def fail(self, error: DrivetrainError) -> None:
        self._send(protocol.dump_failure(error), ends=True)

    def _send(self, item: bytes, *, ends: bool) -> None:
        self.connected = self._route.send(item) and self.connected
        if ends or not self.connected:
            self.ended.set()


async def _answer(work: Awaitable[Any]) -> bytes:
    try:
        return protocol.dump_answer(await work)
    except DrivetrainError as exc:
        return protocol.dump_answer(exc)

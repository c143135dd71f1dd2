"""One request over a deployment handle: its attempts, the events that come back, and its one ending."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from drivetrain.core.errors import Cancelled, DrivetrainError, EngineFailed, NotReady
from drivetrain.core.events import Delta, Event, Finished, Started
from drivetrain.core.request import GenerateRequest
from drivetrain.core.results import Usage
from drivetrain.core.stats import Stats
from drivetrain.core.worker import EventSink
from drivetrain.scale.ray import protocol
from drivetrain.scale.ray.errors import FOREIGN, LOST, translated
from drivetrain.scale.ray.event_link import EventServer
from drivetrain.worker import logbook
from drivetrain.worker.admission import ATTEMPTS
from drivetrain.worker.lifecycle import Lifecycle
from drivetrain.worker.output import Collected

SENDS = 3
"""Nobody has seen anything of a request whose replica is lost before its first event, or declined it, so it goes to
another replica. It may be what the replica was lost of: it is sent again after one loss, and not after a second."""

DECLINED_WAIT_S = 0.5
"""Before a request is sent again that a replica declined because its engine is restarting."""

ABORT_WAIT_S = 10.0

LAST_EVENTS_S = 30.0
"""After the end of a call, for the next of the items that are still on the link. A busy ingress reads late."""

_log = logging.getLogger(__name__)


class StreamingCall(Protocol):
    """What a streaming method of a deployment handle returns."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    def cancel(self) -> None: ...


class Observer(Protocol):
    @property
    def stats(self) -> Stats:
        """Where the request is counted."""
        ...

    def released(self, run: HandleRun) -> None:
        """Called once, when no replica holds anything of the request any more."""
        ...


class HandleRun(Lifecycle):
    """Its task reads the replica's call from `start` until the replica has let go of the request."""

    def __init__(
        self,
        request: GenerateRequest,
        sink: EventSink,
        *,
        request_id: str,
        model: str,
        send: Callable[[protocol.ReplyTo | None], StreamingCall],
        event_server: EventServer,
        observer: Observer,
        timeout_s: float,
    ) -> None:
        super().__init__(request, sink, request_id=request_id, model=model, timeout_s=timeout_s)
        self.last_item_at = 0.0
        self._send = send
        self._event_server = event_server
        self._observer = observer
        self._stats = observer.stats
        self._prompt_tokens = 0
        self._usage: Usage | None = None
        self._finished = False
        self._outcome_known = asyncio.Event()
        """Set when the attempt has ended, or was declined, by what came from the replica."""
        self._attempts = 0
        self._losses = 0
        self._declined = False
        self._call: StreamingCall | None = None
        self._task: asyncio.Task[None] | None = None

    # What the caller does

    def start(self) -> None:
        """Send it to a replica: once, and not at all if it has ended before."""
        if self._task is None and not self.ended:
            self._task = asyncio.create_task(self._run(), name=f"drivetrain-{self.request_id}")

    @property
    def begun(self) -> bool:
        """Whether its first event has come."""
        return self.collected is not None

    @property
    def usage(self) -> Usage:
        """As the replica reported it with the ending; until then, by the tokens that have come."""
        if self._usage is not None:
            return self._usage
        return Usage(self._prompt_tokens, self._num_tokens)

    @property
    def _num_tokens(self) -> int:
        return self.collected.num_tokens if self.collected is not None else 0

    # Its attempts

    async def _run(self) -> None:
        try:
            while await self._attempt():
                pass
        except FOREIGN as exc:
            self._end(translated(exc))
        except DrivetrainError as exc:
            self._end(exc)
        except asyncio.CancelledError:  # also by Serve, which cancels all calls of an HTTP request whose client left
            self._end(Cancelled("the caller went away"))
            raise
        except Exception as exc:  # noqa: BLE001 - a request has one ending, whatever bug we have
            _log.exception("%s: a bug in this program", self.request_id)
            self._end(EngineFailed(f"this ingress failed on the request: {type(exc).__name__}"))
            if self._call is not None:
                self._call.cancel()
        finally:
            self._end(EngineFailed("the replica stopped without ending the answer"))
            self._observer.released(self)

    async def _attempt(self) -> bool:
        """Send it to a replica. True: nobody has seen anything of it, and it is to be sent again."""
        self._attempts += 1
        self._declined = False
        self._outcome_known.clear()
        try:
            await self._read()
        except LOST:
            if self._call is not None:
                self._call.cancel()  # a replica that was only out of reach may be working on it
            self._losses += 1
            if self._losses >= ATTEMPTS or not self._may_go_elsewhere:
                raise
            return True
        if self._declined:
            await asyncio.sleep(DECLINED_WAIT_S)
        return self._declined

    @property
    def _may_go_elsewhere(self) -> bool:
        return not self.ended and not self.begun and self._attempts < SENDS

    async def _read(self) -> None:
        """Read the call to its end, even if the request was interrupted: then it has ended in the replica too.

        Items come over the link, or as the call's own if there is no link.
        """
        if self.ended:
            return
        with self._event_server.expect(self) as reply_to:
            self._call = self._send(reply_to)
            async for item in self._call:
                self.take(item)
            if reply_to is not None and not self.ended:
                await self._await_last_events()

    async def _await_last_events(self) -> None:
        """Ray may report the end of the call before the last items arrive over the link."""
        before = -1.0
        while not self._outcome_known.is_set() and before != self.last_item_at:
            before = self.last_item_at
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_EVENTS_S):
                    await self._outcome_known.wait()
        if not self._outcome_known.is_set():
            _log.error(
                "%s: attempt %d ended without its last event, after %d tokens",
                self.request_id,
                self._attempts,
                self._num_tokens,
            )
            self._declined = self._may_go_elsewhere

    def take(self, item: bytes) -> None:
        """An item from the replica."""
        if self.ended:
            return
        self.last_item_at = time.monotonic()
        try:
            events, ending = protocol.load_events(item)
            for event in events:
                self._collect(event)
        except Exception as exc:  # noqa: BLE001 - another version may send anything
            self.interrupt(EngineFailed(f"the replica sent something that this ingress does not understand: {exc!r}"))
            return
        if self._finished:
            self._end(None)  # before its reader gets the last event
        self._give(events)
        if ending is not None:
            error, usage = ending
            if isinstance(error, NotReady) and self._may_go_elsewhere:
                self._declined = True
                self._outcome_known.set()
                return
            self._usage = usage
            self._end(error)

    def _collect(self, event: Event) -> None:
        if isinstance(event, Started):
            self._begin(event)
        elif isinstance(event, Finished):
            self._usage, self.metrics, self._finished = event.usage, event.metrics, True
            self.receipt = event.receipt
        elif self.collected is None:
            raise ValueError(f"{type(event).__name__} before Started")
        else:
            self.collected.take(event)
            if isinstance(event, Delta) and event.token_ids:
                self._stats.count_tokens(self.times, event.index, len(event.token_ids))

    def _begin(self, started: Started) -> None:
        """Only this event tells that it has a slot, so `queue_s` includes the call and the prompt's preparation."""
        request = self.request
        logprobs = request.logprobs is not None or request.prompt_logprobs is not None
        self.collected = Collected(request.n or 1, logprobs=logprobs)
        self._prompt_tokens, self.prompt_token_ids = started.prompt_tokens, started.prompt_token_ids
        self.truncated_tokens = started.truncated_tokens
        self.times.admitted = time.monotonic()
        self._stats.count_admitted(self.times)
        self._stats.count_started(started)

    # Endings

    def disconnected(self) -> None:
        """The connection that brought the first items is lost, so the rest cannot come."""
        if not self._declined:
            self.interrupt(EngineFailed("the replica running this request was lost; try again"))

    async def released(self) -> None:
        """Wait until the replica has let go of the request."""
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=ABORT_WAIT_S)

    def _leave(self) -> None:
        if self._task is None:
            self._observer.released(self)
        elif self._call is not None:
            self._call.cancel()

    def _note(self, error: DrivetrainError | None) -> None:
        self._stats.completion_tokens += self.usage.completion_tokens - self._num_tokens  # of a stop that was cut off
        self._stats.count(self.times, self, error)
        if error is not None:
            self.metrics = self.times.metrics(self.usage)
        logbook.ended(self, error, self.metrics)
        self._outcome_known.set()

"""One request over a deployment handle: its events where they arise, its one ending, and its end in the replica."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
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
from drivetrain.worker.lifecycle import Lifecycle
from drivetrain.worker.output import Collected

ATTEMPTS = 3
"""A replica that is lost before it said anything has done nothing that anybody saw: the request goes to another one."""

DECLINED_WAIT_S = 0.5
"""Before a request is sent again that a replica did not take because its engine is being started again."""

ABORT_WAIT_S = 10.0

LAST_WORD_S = 30.0
"""When a call has ended, for the next of the items that are on their way by the link. A busy ingress reads late."""

_log = logging.getLogger(__name__)


class Response(Protocol):
    """What a streaming call of a deployment handle gives."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    def cancel(self) -> None: ...


class Observer(Protocol):
    @property
    def stats(self) -> Stats:
        """What the request counts in."""
        ...

    def released(self, run: HandleRun) -> None:
        """Told once that no replica holds anything of it any more."""
        ...


class HandleRun(Lifecycle):
    """The request itself. Its task reads the replica from `start` until the replica has let go."""

    def __init__(
        self,
        request: GenerateRequest,
        sink: EventSink,
        *,
        request_id: str,
        model: str,
        call: Callable[[protocol.ReplyTo | None], Response],
        inlet: EventServer,
        observer: Observer,
        timeout_s: float,
    ) -> None:
        super().__init__(request, sink, request_id=request_id, model=model, timeout_s=timeout_s)
        self.last_heard = 0.0
        self._call = call
        self._inlet = inlet
        self._observer = observer
        self._stats = observer.stats
        self._prompt_tokens = 0
        self._usage: Usage | None = None
        self._finished = False
        self._told = asyncio.Event()
        """How the attempt ended is known."""
        self._attempts = 0
        self._declined = False
        self._response: Response | None = None
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
        """As the replica gave it with the ending; until then, by the tokens that have come."""
        if self._usage is not None:
            return self._usage
        return Usage(self._prompt_tokens, self._num_tokens)

    @property
    def _num_tokens(self) -> int:
        return self.collected.num_tokens if self.collected is not None else 0

    # The way of the request

    async def _run(self) -> None:
        try:
            while await self._attempt():
                pass
        except FOREIGN as exc:
            self._end(translated(exc))
        except DrivetrainError as exc:
            self._end(exc)
        except asyncio.CancelledError:  # by Serve too, which ends the calls made for an HTTP request that was left
            self._end(Cancelled("the caller went away"))
            raise
        except Exception as exc:  # noqa: BLE001 - a request has one ending, whatever is wrong with us
            _log.exception("%s: a bug in this program", self.request_id)
            self._end(EngineFailed(f"this ingress failed on the request: {type(exc).__name__}"))
            if self._response is not None:
                self._response.cancel()
        finally:
            self._end(EngineFailed("the replica stopped without ending the answer"))
            self._observer.released(self)

    async def _attempt(self) -> bool:
        """Send it to a replica. Whether it may be sent again, since nobody saw anything of it."""
        self._attempts += 1
        self._declined = False
        self._told.clear()
        try:
            await self._read()
        except LOST:
            if self._response is not None:
                self._response.cancel()  # one that could not be reached for a moment may be at it all the same
            if not self._may_go_elsewhere:
                raise
            return True
        if self._declined:
            await asyncio.sleep(DECLINED_WAIT_S)
        return self._declined

    @property
    def _may_go_elsewhere(self) -> bool:
        return not self.ended and not self.begun and self._attempts < ATTEMPTS

    async def _read(self) -> None:
        """To the end also what was interrupted: the end of the call is the end of the request in the replica.

        Items come by the link, or where there is none by the call.
        """
        if self.ended:
            return
        with self._inlet.expect(self) as reply:
            self._response = self._call(reply)
            async for item in self._response:
                self.take(item)
            if reply is not None and not self.ended:
                await self._last_word()

    async def _last_word(self) -> None:
        """Ray's word of the end may be here before what went over the link."""
        heard = -1.0
        while not self._told.is_set() and heard != self.last_heard:
            heard = self.last_heard
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORD_S):
                    await self._told.wait()
        if not self._told.is_set():
            what = f"of {self._attempts} attempts, {self._num_tokens} tokens came"
            _log.error("%s: the call ended without its last event: %s", self.request_id, what)
            self._declined = self._may_go_elsewhere

    def take(self, item: bytes) -> None:
        """An item of the replica's."""
        if self.ended:
            return
        self.last_heard = time.monotonic()
        try:
            events, ending = protocol.load_events(item)
            for event in events:
                self._collect(event)
        except Exception as exc:  # noqa: BLE001 - of a version that says other things, whatever it says
            self.interrupt(EngineFailed(f"the replica sent something that this ingress does not understand: {exc!r}"))
            return
        self._hand_on(events)
        if ending is not None:
            error, usage = ending
            if isinstance(error, NotReady) and self._may_go_elsewhere:
                self._declined = True
                self._told.set()
                return
            self._usage = usage
            self._end(error)

    def _collect(self, event: Event) -> None:
        if isinstance(event, Started):
            self._begin(event)
        elif isinstance(event, Finished):
            self._usage, self.metrics, self._finished = event.usage, event.metrics, True
        elif self.collected is None:
            raise ValueError(f"{type(event).__name__} before Started")
        else:
            self.collected.take(event)
            if isinstance(event, Delta) and event.token_ids:
                self._stats.count_tokens(self.times, event.index, len(event.token_ids))

    def _begin(self, started: Started) -> None:
        """Its slot is known by this event only, so `queue_s` holds the way to the replica and the prompt too."""
        request = self.request
        logprobs = request.logprobs is not None or request.prompt_logprobs is not None
        self.collected = Collected(request.n or 1, logprobs=logprobs)
        self._prompt_tokens, self.prompt_token_ids = started.prompt_tokens, started.prompt_token_ids
        self.truncated_tokens = started.truncated_tokens
        self.times.admitted = time.monotonic()
        self._stats.queue_s.observe(self.times.admitted - self.times.entered)

    def _hand_on(self, events: Sequence[Event]) -> None:
        """A good answer has ended by the time that its last event is heard."""
        if self._finished:
            self._end(None)
        self._give(events)

    # Endings

    def broken(self) -> None:
        """The link is lost over which the first items came: what more there is cannot come."""
        if not self._declined:
            self.interrupt(EngineFailed("the replica running this request was lost; try again"))

    async def released(self) -> None:
        """Wait until the replica has let go of it."""
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=ABORT_WAIT_S)

    def _leave(self) -> None:
        if self._task is None:
            self._observer.released(self)
        elif self._response is not None:
            self._response.cancel()

    def _note(self, error: DrivetrainError | None) -> None:
        self._stats.completion_tokens += self.usage.completion_tokens - self._num_tokens  # of a stop that was cut off
        self._stats.count(self.times, self, error)
        if error is not None:
            self.metrics = self.times.metrics(self.usage)
        logbook.ended(self, error, self.metrics)
        self._told.set()

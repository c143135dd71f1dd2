"""The reader's end of a request, for Python: events as an async iterator that owns what it reads from."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

from drivetrain.core.errors import Cancelled, DrivetrainError
from drivetrain.core.events import Event
from drivetrain.core.results import Result
from drivetrain.core.worker import EventSink, Submission


class Readable(Submission, Protocol):
    """A request that begins with its reader, and ends when that is forgotten."""

    def start(self) -> None: ...

    def forget(self) -> None:
        """From any thread."""
        ...


class Read(Protocol):
    """A request whose events somebody reads."""

    @property
    def sink(self) -> EventSink: ...

    def interrupt(self, error: DrivetrainError) -> None: ...


def cancel_unread(runs: Iterable[Read], *, max_unread: int, timeout_s: float) -> None:
    """End those whose readers have stopped reading, so that nobody's slow client holds a slot."""
    for run in list(runs):
        unread, idle_s = run.sink.unread, time.monotonic() - run.sink.last_read
        if unread > max_unread or (unread and idle_s > timeout_s):
            run.interrupt(Cancelled(f"the reader left {unread} events unread for {idle_s:.0f} seconds"))


class Reader:
    """A sink that keeps the events until somebody takes them."""

    def __init__(self) -> None:
        self.events: deque[Event] = deque()
        self.error: DrivetrainError | None = None
        self.last_read = time.monotonic()
        self.news: asyncio.Future[None] | None = None

    @property
    def unread(self) -> int:
        return len(self.events)

    def take(self, events: Sequence[Event]) -> None:
        self.events += events
        self._tell()

    def fail(self, error: DrivetrainError) -> None:
        self.error = error
        self._tell()

    def take_error(self) -> DrivetrainError:
        """To be raised. It is not kept, since it keeps the frames on its way, and they this: the next one is equal."""
        assert self.error is not None
        error, self.error = self.error, self.error.again()
        return error

    def _tell(self) -> None:
        if self.news is not None and not self.news.done():
            self.news.set_result(None)


class EventStream:
    """What `Worker.stream` returns: an async iterator of events that owns its request.

    The work begins with the first event awaited. Reading to the end, `aclose()`, leaving an `async with`, an error,
    cancelling the reading task, forgetting the object and not reading for too long all end the request and free what
    it holds.
    """

    def __init__(self, run: Readable, reader: Reader) -> None:
        self._run = run
        self._reader = reader

    @property
    def request_id(self) -> str:
        return self._run.request_id

    def result(self) -> Result:
        """Everything so far, as one value; whole once the stream has ended."""
        return self._run.result()

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> Event:
        """The next event; raises the one `DrivetrainError` that ended the request, or `StopAsyncIteration`."""
        reader = self._reader
        if reader.news is not None:
            raise RuntimeError("an answer has only one reader, and one is already waiting for an event")
        reader.last_read = time.monotonic()
        self._run.start()
        while not reader.events:
            if reader.error is not None:
                raise reader.take_error()
            if self._run.ended:
                raise StopAsyncIteration
            await self._news()
        return reader.events.popleft()

    async def batch(self) -> Sequence[Event]:
        """All events that wait, at least one; none at the end. Raises as `__anext__`."""
        try:
            first = await anext(self)
        except StopAsyncIteration:
            return ()
        events = (first, *self._reader.events)
        self._reader.events.clear()
        return events

    async def _news(self) -> None:
        reader = self._reader
        reader.news = asyncio.get_running_loop().create_future()
        try:
            await reader.news
        except asyncio.CancelledError:
            self._run.cancel("the reader was cancelled")
            raise
        finally:
            reader.news = None

    async def aclose(self) -> None:
        """End the request if it runs, and return once its resources are free. What was not read then is not kept."""
        self._run.cancel("the reader closed the request")
        self._reader.events.clear()
        await self._run.released()

    async def __aenter__(self) -> EventStream:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        run: Readable | None = getattr(self, "_run", None)
        if run is not None and not run.ended:
            run.forget()

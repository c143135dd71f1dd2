"""The answers to one HTTP request: a stream a prompt, merged, and all closed when the client goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from starlette.types import Receive

from drivetrain.core.errors import DrivetrainError, InvalidRequest, Unsupported
from drivetrain.core.events import Event, Finished
from drivetrain.core.results import Result, Usage
from drivetrain.core.worker import EventStream, Worker
from drivetrain.server.errors import renamed
from drivetrain.server.translate import Asked

MAX_MERGED = 64
"""Events of a list of prompts that wait for the writer; past it the streams wait too."""


@asynccontextmanager
async def answering(worker: Worker, asked: Asked, receive: Receive) -> AsyncIterator[list[EventStream]]:
    """While entered, a client that leaves ends all streams; so does leaving by any exception.

    Streams that were read to their end have freed everything themselves, and nobody waits for that here.
    """
    streams: list[EventStream] = []
    listener: asyncio.Task[None] | None = None
    try:
        if asked.token_ids and not worker.capabilities.tokens:
            raise Unsupported("this model's engine gives text, no token ids", param="return_token_ids")
        streams += [worker.submit(request) for request in asked.requests]
        listener = asyncio.create_task(_close_when_gone(receive, streams), name="drivetrain-listen")
        yield streams
    except BaseException as exc:
        for stream in streams:
            await stream.aclose()
        if isinstance(exc, InvalidRequest):
            raise renamed(exc, asked.names) from exc
        raise
    finally:
        if listener is not None:
            listener.cancel()
            await asyncio.gather(listener, return_exceptions=True)


async def gone(receive: Receive) -> None:
    """Return when the client has left. Its body was read before."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _close_when_gone(receive: Receive, streams: Sequence[EventStream]) -> None:
    await gone(receive)
    for stream in streams:
        await stream.aclose()


async def read_whole(streams: Sequence[EventStream]) -> list[Result]:
    async with Answers(streams) as answers:
        await answers.follow(lambda number, events: True)
    return [stream.result() for stream in streams]


class Answers:
    """The events of all streams as they come, each with the number of its stream. The first error ends them.

    Leaving it closes the streams that were not read to their end.
    """

    def __init__(self, streams: Sequence[EventStream]) -> None:
        self._streams = streams
        self._queue: asyncio.Queue[tuple[int, Event | DrivetrainError | None]] = asyncio.Queue(MAX_MERGED)
        self._pumps: list[asyncio.Task[None]] = []
        self._running = len(streams)

    async def follow(self, hear: Callable[[int, Sequence[Event]], bool]) -> None:
        """Until `hear` returns False, or the last event. It is called as that of `EventStream.follow`."""
        if len(self._streams) == 1:
            await self._follow_one(self._streams[0], hear)
        else:
            await self._follow_all(hear)

    async def _follow_one(self, stream: EventStream, hear: Callable[[int, Sequence[Event]], bool]) -> None:
        def heard(events: Sequence[Event]) -> bool:
            if type(events[-1]) is Finished:
                self._running = 0
            return hear(0, events)

        await stream.follow(heard)

    async def _follow_all(self, hear: Callable[[int, Sequence[Event]], bool]) -> None:
        if not self._pumps:
            self._pumps = [asyncio.create_task(self._pump(i, stream)) for i, stream in enumerate(self._streams)]
        while self._running:
            number, item = await self._queue.get()
            if item is None:
                self._running -= 1
            elif isinstance(item, DrivetrainError):
                raise item
            elif not hear(number, (item,)):
                return

    async def _pump(self, number: int, stream: EventStream) -> None:
        try:
            async for event in stream:
                await self._queue.put((number, event))
        except DrivetrainError as exc:
            await self._queue.put((number, exc))
        except BaseException:
            await stream.aclose()
            raise
        else:
            await self._queue.put((number, None))

    async def __aenter__(self) -> Answers:
        return self

    async def __aexit__(self, *exc: object) -> None:
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        for stream in self._streams if self._running and not self._pumps else ():
            await stream.aclose()


def total(usages: Sequence[Usage]) -> Usage:
    return Usage(
        sum(u.prompt_tokens for u in usages),
        sum(u.completion_tokens for u in usages),
        sum(u.cached_tokens for u in usages),
        all(u.told for u in usages),
    )

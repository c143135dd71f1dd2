"""The answers to one HTTP request: a stream a prompt, merged, and all closed when the client goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager

from starlette.types import Receive

from drivetrain.core.errors import DrivetrainError, InvalidRequest
from drivetrain.core.events import Delta, Event, Finished
from drivetrain.core.results import Result, Usage
from drivetrain.core.worker import EventStream, Worker
from drivetrain.server.errors import renamed
from drivetrain.server.gauges import Gauges
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


async def read_whole(streams: Sequence[EventStream], gauges: Gauges) -> list[Result]:
    async with aclosing(merged(streams)) as events:
        async for _, event in events:
            if type(event) is Delta:
                gauges.tokens += len(event.token_ids)
            elif type(event) is Finished:
                gauges.finished(event)
    return [stream.result() for stream in streams]


async def merged(streams: Sequence[EventStream]) -> AsyncGenerator[tuple[int, Event], None]:
    """The events of all streams as they come, each with the number of its stream. The first error ends it.

    Whoever leaves it early closes the streams.
    """
    if len(streams) == 1:
        try:
            async for event in streams[0]:
                yield 0, event
        except BaseException:
            await streams[0].aclose()
            raise
        return
    queue: asyncio.Queue[tuple[int, Event | DrivetrainError | None]] = asyncio.Queue(MAX_MERGED)
    pumps = [asyncio.create_task(_pump(i, stream, queue)) for i, stream in enumerate(streams)]
    try:
        running = len(pumps)
        while running:
            number, item = await queue.get()
            if item is None:
                running -= 1
            elif isinstance(item, DrivetrainError):
                raise item
            else:
                yield number, item
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(
    number: int, stream: EventStream, queue: asyncio.Queue[tuple[int, Event | DrivetrainError | None]]
) -> None:
    try:
        async for event in stream:
            await queue.put((number, event))
    except DrivetrainError as exc:
        await queue.put((number, exc))
    except BaseException:
        await stream.aclose()
        raise
    else:
        await queue.put((number, None))


def total(usages: Sequence[Usage]) -> Usage:
    return Usage(
        sum(u.prompt_tokens for u in usages),
        sum(u.completion_tokens for u in usages),
        sum(u.cached_tokens for u in usages),
    )

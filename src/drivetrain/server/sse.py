"""Server-sent events: one event of the stream becomes one event on the wire, as soon as it is there.

Back-pressure is the transport's: `send` waits while its buffer is full, the stream is not read meanwhile, and the
worker (or the connection's own write timeout) ends what nobody takes.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Protocol

from starlette.types import Receive, Scope, Send

from drivetrain.core.errors import DrivetrainError, EngineFailed
from drivetrain.core.events import Delta, Event, Finished, Started
from drivetrain.core.results import Usage
from drivetrain.core.worker import Worker
from drivetrain.server.answering import answering, merged, total
from drivetrain.server.errors import body_of
from drivetrain.server.gauges import Gauges
from drivetrain.server.translate import Asked

TRUNCATED_HEADER = "x-drivetrain-truncated-tokens"

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
_log = logging.getLogger("drivetrain.server")


class Chunks(Protocol):
    """How one endpoint spells events. `prompt` is the number of the stream that the event came from."""

    def spell(self, prompt: int, event: Event) -> bytes:
        """The wire form, blank lines included; empty for an event that says nothing to this client."""
        ...

    def usage(self, usage: Usage) -> bytes:
        """The chunk behind the last one, for those who asked for the usage."""
        ...


class EventSource:
    """An ASGI response. What goes wrong before the first token is raised, so that it gets a status of its own."""

    def __init__(
        self, worker: Worker, asked: Asked, chunks: Chunks, gauges: Gauges, headers: Mapping[str, str]
    ) -> None:
        self._worker = worker
        self._asked = asked
        self._chunks = chunks
        self._gauges = gauges
        self._headers = headers
        self._usages: list[Usage] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with (
            answering(self._worker, self._asked, receive) as streams,
            aclosing(merged(streams)) as events,
        ):
            held = await self._until_something_to_say(events, len(streams))
            await send({"type": "http.response.start", "status": 200, "headers": self._start(held)})
            await send(_part(await self._write(held, events, send), more=False))

    async def _until_something_to_say(
        self, events: AsyncIterator[tuple[int, Event]], prompts: int
    ) -> list[tuple[int, Event]]:
        """Every prompt was found good, and a first token came: now there is no way back to an error status.

        A list of prompts is held back until the last of them is admitted; the worker's limits bound what that takes.
        """
        held: list[tuple[int, Event]] = []
        waiting, spoke = prompts, False
        async for item in events:
            held.append(item)
            if type(item[1]) is Started:
                waiting -= 1
            else:
                spoke = True
            if spoke and not waiting:
                break
        return held

    def _start(self, held: list[tuple[int, Event]]) -> list[tuple[bytes, bytes]]:
        truncated = sum(event.truncated_tokens for _, event in held if isinstance(event, Started))
        headers = dict(self._headers) | ({TRUNCATED_HEADER: str(truncated)} if truncated else {})
        return [*_HEADERS, *((name.encode(), value.encode("latin-1")) for name, value in headers.items())]

    async def _write(
        self, held: list[tuple[int, Event]], events: AsyncIterator[tuple[int, Event]], send: Send
    ) -> bytes:
        """Send all events; return the end of the stream, which is an error event where one came."""
        try:
            for prompt, event in held:
                await self._give(prompt, event, send)
            held.clear()
            spell, gauges = self._chunks.spell, self._gauges
            async for prompt, event in events:
                if type(event) is Delta:
                    gauges.tokens += len(event.token_ids)
                    if data := spell(prompt, event):
                        await send({"type": "http.response.body", "body": data, "more_body": True})
                else:
                    await self._give(prompt, event, send)
        except DrivetrainError as exc:
            return b"data: " + body_of(exc) + b"\n\n" + DONE
        except Exception:  # noqa: BLE001 - our own bug must still be one typed ending
            _log.exception("a stream could not be written")
            return b"data: " + body_of(EngineFailed("the server failed on this stream")) + b"\n\n" + DONE
        return (self._chunks.usage(total(self._usages)) if self._asked.include_usage else b"") + DONE

    async def _give(self, prompt: int, event: Event, send: Send) -> None:
        if isinstance(event, Delta):
            self._gauges.tokens += len(event.token_ids)
        elif isinstance(event, Finished):
            self._gauges.finished(event)
            self._usages.append(event.usage)
        if data := self._chunks.spell(prompt, event):
            await send(_part(data))


DONE = b"data: [DONE]\n\n"


def _part(data: bytes, *, more: bool = True) -> dict[str, object]:
    return {"type": "http.response.body", "body": data, "more_body": more}

"""Server-sent events: one event of the stream becomes one event on the wire, as soon as it is there.

Back-pressure is the transport's: `send` waits while its buffer is full, the stream is not read meanwhile, and the
worker (or the connection's own write timeout) ends what nobody takes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from starlette.types import Receive, Scope, Send

from drivetrain.core.errors import DrivetrainError, EngineFailed
from drivetrain.core.events import Event, Finished, Started
from drivetrain.core.results import Usage
from drivetrain.core.worker import EventStream
from drivetrain.server.answering import Answers, total
from drivetrain.server.errors import body_of
from drivetrain.server.sending import Sender
from drivetrain.server.translate import Asked

Begin = Callable[[Receive], AbstractAsyncContextManager[list[EventStream]]]
"""Submits the request; its streams are closed when it is left."""

Batch = tuple[int, Sequence[Event]]
"""Events, and the number of the prompt that they belong to."""

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

    def __init__(self, begin: Begin, asked: Asked, chunks: Chunks, headers: Mapping[str, str]) -> None:
        self._begin = begin
        self._asked = asked
        self._chunks = chunks
        self._headers = headers
        self._usages: list[Usage] = []
        self._running = len(asked.requests)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._begin(receive) as streams, Answers(streams) as answers:
            held = await self._until_something_to_say(answers, len(streams))
            await send({"type": "http.response.start", "status": 200, "headers": self._start(held)})
            last = await self._write(held, answers, Sender(send, scope))
            await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _until_something_to_say(self, answers: Answers, prompts: int) -> list[Batch]:
        """Every prompt was found good, and a first token came: now there is no way back to an error status.

        A list of prompts is held back until the last of them is admitted; the worker's limits bound what that takes.
        """
        held: list[Batch] = []
        waiting, spoke = prompts, False

        def hold(prompt: int, events: Sequence[Event]) -> bool:
            nonlocal waiting, spoke
            held.append((prompt, events))
            started = sum(type(event) is Started for event in events)
            waiting -= started
            spoke = spoke or started < len(events)
            return waiting > 0 or not spoke

        await answers.follow(hold)
        return held

    def _start(self, held: list[Batch]) -> list[tuple[bytes, bytes]]:
        started = [event for _, events in held for event in events if isinstance(event, Started)]
        truncated = sum(event.truncated_tokens for event in started)
        headers = dict(self._headers) | ({TRUNCATED_HEADER: str(truncated)} if truncated else {})
        return [*_HEADERS, *((name.encode(), value.encode("latin-1")) for name, value in headers.items())]

    async def _write(self, held: list[Batch], answers: Answers, sender: Sender) -> bytes:
        """Send all events; return the end of the stream, which is an error event where one came.

        What is there at once goes out at once, and the last events go with the end: a client wakes once for them.
        """
        last = b""
        failures: list[Exception] = []
        paused = False

        def give(prompt: int, events: Sequence[Event]) -> bool:
            nonlocal last, paused
            try:
                data = self._spell(prompt, events)
                if self._running:
                    paused = bool(data) and not sender.give(data)
                    return not paused
                last = data
            except Exception as exc:  # noqa: BLE001 - it is told below
                failures.append(exc)
            return False

        try:
            data = b"".join([self._spell(prompt, events) for prompt, events in held])
            held.clear()
            if not self._running:
                last = data
            else:
                sender.give(data)  # even nothing: the head goes with it
            while self._running and not failures:
                await sender.drained()
                paused = False
                await answers.follow(give)
                if self._running and not failures and not paused:
                    raise EngineFailed("the answer stopped without an ending")
            if failures:
                raise failures[0]
        except DrivetrainError as exc:
            return last + b"data: " + body_of(exc) + b"\n\n" + DONE
        except Exception:  # noqa: BLE001 - our own bug must still be one typed ending
            _log.exception("a stream could not be written")
            return last + b"data: " + body_of(EngineFailed("the server failed on this stream")) + b"\n\n" + DONE
        return last + (self._chunks.usage(total(self._usages)) if self._asked.include_usage else b"") + DONE

    def _spell(self, prompt: int, events: Sequence[Event]) -> bytes:
        last, spell = events[-1], self._chunks.spell
        if type(last) is Finished:
            self._usages.append(last.usage)
            self._running -= 1
        return spell(prompt, last) if len(events) == 1 else b"".join([spell(prompt, event) for event in events])


DONE = b"data: [DONE]\n\n"

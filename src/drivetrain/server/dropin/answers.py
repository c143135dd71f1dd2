"""An answer as both protocols give it: everything said so far, again and again, or once at its end.

All that goes wrong is part of the answer, with its number: their API servers look at nothing else.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from drivetrain.core.errors import DrivetrainError, EngineFailed
from drivetrain.core.events import ChoiceFinished, Delta, Event, Finished, Started
from drivetrain.core.results import FinishReason, Metrics, TokenLogprob, Usage
from drivetrain.core.worker import EventStream
from drivetrain.server.answering import answering
from drivetrain.server.context import Context
from drivetrain.server.errors import json_response
from drivetrain.server.leasing import leased, within
from drivetrain.server.refusals import tell_refusal
from drivetrain.server.spelling import compact
from drivetrain.server.translate import Asked

END = b"\0"
"""Stands behind each JSON text of a stream."""

GROWTH = 8
"""A part with logprobs is sent once there are an eighth more of them than in the last one: each has all of them."""

_log = logging.getLogger("drivetrain.server")


class SoFar:
    """What one answer of one choice has come to."""

    def __init__(self) -> None:
        self.usage = Usage()
        self.logprobs: list[TokenLogprob] | None = None
        self.reason: FinishReason | None = None
        self.metrics: Metrics | None = None
        self.text = ""
        self.ended = False

    @property
    def num_entries(self) -> int:
        return len(self.logprobs or ())

    def hear(self, event: Event) -> bool:
        """Whether it brought text."""
        if isinstance(event, Started):
            self.usage = Usage(event.prompt_tokens)
        elif isinstance(event, Delta):
            self.text += event.text
            if event.logprobs is not None:
                self.logprobs = self.logprobs or []
                self.logprobs += event.logprobs
            self.usage = Usage(self.usage.prompt_tokens, self.usage.completion_tokens + len(event.token_ids))
            return bool(event.text)
        elif isinstance(event, ChoiceFinished):
            self.reason = event.reason
        elif isinstance(event, Finished):
            self.usage, self.metrics, self.ended = event.usage, event.metrics, True
        return False


class Dialect(Protocol):
    """How a protocol asks, and how it is answered."""

    async def read(self, request: Request, context: Context) -> tuple[str, Asked]:
        """The model's name, and one request to it. Raises `DrivetrainError`."""
        ...

    def spell(self, so_far: SoFar) -> dict[str, Any]:
        """Called after each piece of text without a reason and metrics, and once at the end with both."""
        ...

    def failed(self, error: DrivetrainError) -> dict[str, Any]: ...


async def whole(request: Request, context: Context, dialect: Dialect) -> Response:
    return await answered(request, context, dialect, _whole(request, context, dialect))


async def _whole(request: Request, context: Context, dialect: Dialect) -> dict[str, Any]:
    so_far = SoFar()
    async with _stream(request, context, dialect) as stream:
        async for event in stream:
            so_far.hear(event)
    return dialect.spell(so_far)


async def answered(request: Request, context: Context, dialect: Dialect, work: Awaitable[dict[str, Any]]) -> Response:
    """What `work` comes to, or in the protocol's words what went wrong: of status 200 either way."""
    began_ns = time.time_ns()
    try:
        return json_response(await work)
    except DrivetrainError as exc:
        _refused(context, request.scope, exc, began_ns)
        return json_response(dialect.failed(exc))
    except Exception:  # noqa: BLE001 - another status is kept by FastChat's API server for ever
        _log.exception("a request could not be answered")
        return json_response(dialect.failed(EngineFailed("the server failed on this request")))


class Stream:
    """An ASGI response. It begins before anything is known of the answer, and its last text says how it ended."""

    def __init__(self, request: Request, context: Context, dialect: Dialect) -> None:
        self._request = request
        self._context = context
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [
            (b"content-type", b"application/octet-stream"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ]
        began_ns = time.time_ns()
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            last = await self._until_the_last(send)
        except DrivetrainError as exc:
            _refused(self._context, scope, exc, began_ns)
            last = self._dialect.failed(exc)
        except Exception:  # noqa: BLE001 - our own bug must still be one typed ending
            _log.exception("a stream could not be written")
            last = self._dialect.failed(EngineFailed("the server failed on this stream"))
        await send({"type": "http.response.body", "body": _part(last)})

    async def _until_the_last(self, send: Send) -> dict[str, Any]:
        """What came together goes out together."""
        so_far = SoFar()
        sent, due = 0, False

        def hear(events: Sequence[Event]) -> bool:
            nonlocal due
            brought = [so_far.hear(event) for event in events]
            due = any(brought) and so_far.num_entries * GROWTH >= sent * (GROWTH + 1)
            return not due

        async with _stream(self._request, self._context, self._dialect) as stream:
            while not so_far.ended:
                due = False
                await stream.follow(hear)
                if due and not so_far.ended:
                    sent = so_far.num_entries
                    part = _part(self._dialect.spell(so_far))
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                elif not so_far.ended:
                    raise EngineFailed("the answer stopped without an ending")
        return self._dialect.spell(so_far)


def _refused(context: Context, scope: Scope, error: DrivetrainError, began_ns: int) -> None:
    context.counts.refused(error)
    tell_refusal(context.tracer, scope, error, began_ns)


@asynccontextmanager
async def _stream(request: Request, context: Context, dialect: Dialect) -> AsyncIterator[EventStream]:
    """The model is held until the answer has ended."""
    name, asked = await dialect.read(request, context)
    async with (
        leased(context.models, name, request.receive) as (worker, left_s),
        answering(worker, within(asked, left_s), request.receive) as (stream,),
    ):
        yield stream


def _part(value: dict[str, Any]) -> bytes:
    return compact(value).encode() + END

"""An answer to a request for text: a stream of chunks, or one JSON object made from the same events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive

from drivetrain.core.results import Result, Usage
from drivetrain.core.worker import EventStream
from drivetrain.server.answering import answering, read_whole, total
from drivetrain.server.context import Context
from drivetrain.server.errors import json_response
from drivetrain.server.leasing import leased, within
from drivetrain.server.sse import TRUNCATED_HEADER, Chunks, EventSource
from drivetrain.server.tenants import apart
from drivetrain.server.translate import Asked

Answered = Response | EventSource


class Shape(Chunks, Protocol):
    def whole(self, results: list[Result], usage: Usage) -> dict[str, Any]: ...


async def answer(
    request: Request, context: Context, model: str, asked: Asked, shape: Shape, headers: Mapping[str, str]
) -> Answered:
    @asynccontextmanager
    async def begin(receive: Receive) -> AsyncIterator[list[EventStream]]:
        """The model is held until the streams are closed."""
        async with leased(context.models, model, receive, asked.requests[0].timeout_s) as (worker, left_s):
            mine = apart(within(asked, left_s), request.scope, worker.capabilities)
            async with answering(worker, mine, receive) as streams:
                yield streams

    if asked.stream:
        return EventSource(begin, asked, shape, headers)
    async with begin(request.receive) as streams:
        results = await read_whole(streams)
    truncated = sum(result.truncated_tokens for result in results)
    extra = {TRUNCATED_HEADER: str(truncated)} if truncated else {}
    return json_response(shape.whole(results, total([r.usage for r in results])), headers={**headers, **extra})

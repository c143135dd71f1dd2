"""An answer to a request for text: a stream of chunks, or one JSON object made from the same events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from drivetrain.core.results import Result, Usage
from drivetrain.core.worker import Worker
from drivetrain.server.answering import answering, read_whole, total
from drivetrain.server.context import Context
from drivetrain.server.errors import json_response
from drivetrain.server.sse import TRUNCATED_HEADER, Chunks, EventSource
from drivetrain.server.tenants import apart
from drivetrain.server.translate import Asked

Answered = Response | EventSource


class Shape(Chunks, Protocol):
    def whole(self, results: list[Result], usage: Usage) -> dict[str, Any]: ...


async def answer(
    request: Request, context: Context, worker: Worker, asked: Asked, shape: Shape, headers: Mapping[str, str]
) -> Answered:
    asked = apart(asked, request.scope, worker.capabilities)
    if asked.stream:
        return EventSource(worker, asked, shape, context.gauges, headers)
    async with answering(worker, asked, request.receive) as streams:
        results = await read_whole(streams, context.gauges)
    truncated = sum(result.truncated_tokens for result in results)
    extra = {TRUNCATED_HEADER: str(truncated)} if truncated else {}
    return json_response(shape.whole(results, total([r.usage for r in results])), headers={**headers, **extra})

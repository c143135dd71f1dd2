"""An answer as both protocols give it: all the text so far, again and again, or once at the end.

Every error is part of the answer, with its number, because their API servers look at nothing else.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from starlette.responses import Response

from drivetrain.core.errors import DrivetrainError, EngineFailed
from drivetrain.core.events import ChoiceFinished, Delta, Event, Finished, Started
from drivetrain.core.results import FinishReason, Metrics, Result, Usage
from drivetrain.core.worker import WorkerPort
from drivetrain.server.answer import answer
from drivetrain.server.context import Context
from drivetrain.server.encoding import encoded
from drivetrain.server.errors import json_response
from drivetrain.server.format.openai import compact
from drivetrain.server.http.exchange import Exchange
from drivetrain.server.http.intake import read_body
from drivetrain.server.parse.body import Body, Values
from drivetrain.server.parse.translate import ParsedRequest
from drivetrain.server.refusals import record_refusal

END = b"\0"
"""Follows each JSON text of a stream."""

_log = logging.getLogger("drivetrain.server")


class SoFar:
    """An answer with one choice, as far as it has come."""

    def __init__(self) -> None:
        self.usage = Usage()
        self.reason: FinishReason | None = None
        self.metrics: Metrics | None = None
        self.text = ""
        self.ended = False

    @classmethod
    def of(cls, result: Result) -> SoFar:
        """A whole answer that has ended."""
        so_far, (choice,) = cls(), result.choices
        so_far.text, so_far.reason = choice.text, choice.finish_reason
        so_far.usage, so_far.metrics, so_far.ended = result.usage, result.metrics, True
        return so_far

    def add(self, event: Event) -> bool:
        """Returns whether it brought text."""
        if isinstance(event, Started):
            self.usage = Usage(event.prompt_tokens)
        elif isinstance(event, Delta):
            self.text += event.text
            self.usage = Usage(self.usage.prompt_tokens, self.usage.completion_tokens + len(event.token_ids))
            return bool(event.text)
        elif isinstance(event, ChoiceFinished):
            self.reason = event.reason
        elif isinstance(event, Finished):
            self.usage, self.metrics, self.ended = event.usage, event.metrics, True
        return False


class SoFarFormatter:
    """Each part of a stream has the whole answer so far."""

    content_type = "application/octet-stream"
    head_first = True

    def __init__(self) -> None:
        self.so_far = SoFar()

    def spell(self, so_far: SoFar) -> dict[str, Any]:
        """As the protocol's JSON. The reason and the metrics are set only at the end."""
        raise NotImplementedError

    def failed(self, error: DrivetrainError) -> dict[str, Any]:
        raise NotImplementedError

    def add(self, event: Event) -> bool:
        """Returns whether to send a part for it."""
        return self.so_far.add(event)

    def part(self) -> bytes:
        """Everything so far, as JSON."""
        return compact(self.spell(self.so_far)).encode()

    def format(self, prompt: int, events: Sequence[Event]) -> bytes:
        """One part for events that came together."""
        is_news = [self.add(event) for event in events]
        return self.part() + END if any(is_news) and not self.so_far.ended else b""

    def end(self, usage: Usage) -> bytes:
        return self.part() + END

    def failure(self, error: DrivetrainError) -> bytes:
        return compact(self.failed(error)).encode() + END

    def whole(self, results: Sequence[Result], usage: Usage) -> dict[str, Any]:
        (result,) = results
        return self.spell(SoFar.of(result))


Read = Callable[[Exchange, Context], Awaitable[tuple[str | None, ParsedRequest]]]
"""Returns the model's name, if given, and one request to it. Raises `DrivetrainError`."""


async def respond(
    exchange: Exchange, context: Context, read: Read, formatter: SoFarFormatter, *, stream: bool
) -> Response | None:
    """Always with status 200: FastChat's API server would cache any other for ever."""
    began_ns = time.time_ns()
    try:
        model, parsed = await read(exchange, context)
        await answer(exchange, context, model, replace(parsed, stream=stream), lambda _: formatter)
    except DrivetrainError as exc:
        error = exc
    except Exception:  # noqa: BLE001 - see above
        _log.exception("failed to answer a request")
        error = EngineFailed("the server failed on this request")
    else:
        return None
    _refused(context, exchange, error, began_ns)
    if stream:
        return Response(formatter.failure(error), media_type=formatter.content_type)
    return json_response(formatter.failed(error))


async def answered(
    exchange: Exchange,
    context: Context,
    formatter: SoFarFormatter,
    table: Body,
    work: Callable[[Values, WorkerPort], Awaitable[dict[str, Any]]],
) -> Response:
    """The result of `work`, or the error as the protocol's JSON, with status 200 either way."""
    began_ns = time.time_ns()
    try:
        body = await read_body(exchange, context, table, may_be_empty=True)
        async with context.models.lease(body.get("model")) as worker:
            result = await work(body, worker)
        return json_response(await encoded(result), headers=body.headers)
    except DrivetrainError as exc:
        _refused(context, exchange, exc, began_ns)
        return json_response(formatter.failed(exc))
    except Exception:  # noqa: BLE001 - FastChat's API server would cache any other status for ever
        _log.exception("failed to answer a request")
        return json_response(formatter.failed(EngineFailed("the server failed on this request")))


def _refused(context: Context, exchange: Exchange, error: DrivetrainError, began_ns: int) -> None:
    context.counts.refused(error)
    record_refusal(context.tracer, exchange.scope, error, began_ns)

"""An answer as both protocols give it: everything said so far, again and again, or once at its end.

All that goes wrong is part of the answer, with its number: their API servers look at nothing else.
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
from drivetrain.server.refusals import tell_refusal

END = b"\0"
"""Stands behind each JSON text of a stream."""

_log = logging.getLogger("drivetrain.server")


class SoFar:
    """What one answer of one choice has come to."""

    def __init__(self) -> None:
        self.usage = Usage()
        self.reason: FinishReason | None = None
        self.metrics: Metrics | None = None
        self.text = ""
        self.ended = False

    @classmethod
    def of(cls, result: Result) -> SoFar:
        """All of an answer that has ended."""
        made, (choice,) = cls(), result.choices
        made.text, made.reason = choice.text, choice.finish_reason
        made.usage, made.metrics, made.ended = result.usage, result.metrics, True
        return made

    def hear(self, event: Event) -> bool:
        """Whether it brought text."""
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
    """Each part of a stream has all that was said until then."""

    content_type = "application/octet-stream"
    head_first = True

    def __init__(self) -> None:
        self.so_far = SoFar()

    def spell(self, so_far: SoFar) -> dict[str, Any]:
        """In the words of the protocol. The reason and the metrics are there at the end only."""
        raise NotImplementedError

    def failed(self, error: DrivetrainError) -> dict[str, Any]:
        raise NotImplementedError

    def hear(self, event: Event) -> bool:
        """Whether a part is sent for it."""
        return self.so_far.hear(event)

    def part(self) -> bytes:
        """All so far, as JSON."""
        return compact(self.spell(self.so_far)).encode()

    def format(self, prompt: int, events: Sequence[Event]) -> bytes:
        """What came together goes out together."""
        sent_for = [self.hear(event) for event in events]
        return self.part() + END if any(sent_for) and not self.so_far.ended else b""

    def end(self, usage: Usage) -> bytes:
        return self.part() + END

    def failure(self, error: DrivetrainError) -> bytes:
        return compact(self.failed(error)).encode() + END

    def whole(self, results: Sequence[Result], usage: Usage) -> dict[str, Any]:
        (result,) = results
        return self.spell(SoFar.of(result))


Read = Callable[[Exchange, Context], Awaitable[tuple[str | None, ParsedRequest]]]
"""The model's name, if one was given, and one request to it. Raises `DrivetrainError`."""


async def respond(
    exchange: Exchange, context: Context, read: Read, formatter: SoFarFormatter, *, stream: bool
) -> Response | None:
    """Of status 200, whatever becomes of it: another one is kept by FastChat's API server for ever."""
    began_ns = time.time_ns()
    try:
        model, asked = await read(exchange, context)
        await answer(exchange, context, model, replace(asked, stream=stream), lambda _: formatter)
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
    """What `work` comes to, or in the protocol's words what went wrong: of status 200 either way."""
    began_ns = time.time_ns()
    try:
        body = await read_body(exchange, context, table, may_be_empty=True)
        async with context.models.lease(body.get("model")) as worker:
            found = await work(body, worker)
        return json_response(await encoded(found), headers=body.headers)
    except DrivetrainError as exc:
        _refused(context, exchange, exc, began_ns)
        return json_response(formatter.failed(exc))
    except Exception:  # noqa: BLE001 - another status is kept by FastChat's API server for ever
        _log.exception("failed to answer a request")
        return json_response(formatter.failed(EngineFailed("the server failed on this request")))


def _refused(context: Context, exchange: Exchange, error: DrivetrainError, began_ns: int) -> None:
    context.counts.refused(error)
    tell_refusal(context.tracer, exchange.scope, error, began_ns)

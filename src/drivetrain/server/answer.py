"""One answer, from the model's lease to the last byte: the worker's events in, a formatter's bytes out.

A stream's events are written in the same call in which the engine delivered them, as long as the connection takes them.
Otherwise they wait here, and the worker ends a request that leaves too many.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Any, Protocol

from drivetrain.core.budget import check_answers
from drivetrain.core.errors import DrivetrainError, EngineFailed, InvalidRequest, Unsupported, drop_frames
from drivetrain.core.events import Delta, Event, Finished, Started
from drivetrain.core.parameters import LACKS
from drivetrain.core.results import Result, Usage
from drivetrain.core.worker import Submission, WorkerPort
from drivetrain.server.context import Context
from drivetrain.server.encoding import encoded
from drivetrain.server.errors import going_on, json_response, renamed
from drivetrain.server.http.exchange import Exchange
from drivetrain.server.models import who_can
from drivetrain.server.parse.translate import ParsedRequest, fitting, honoured
from drivetrain.server.refusals import record_refusal
from drivetrain.server.tenants import apart, shows_cached

TRUNCATED_HEADER = "x-drivetrain-truncated-tokens"

AT_ONCE = 256
"""Steps of a backlog to format in one go; a slow client may have left thousands."""

LOGPROBS_A_STEP = 8
"""Formatting this many is as much work as a step without any; one step of an echoed prompt has thousands."""

_STREAMED = {"cache-control": "no-store", "x-accel-buffering": "no"}
_log = logging.getLogger("drivetrain.server")


class Formatter(Protocol):
    """How one API writes an answer: events in, bytes out. It knows no clock, no connection and no worker.

    There is one for each answer, so it may keep state.
    """

    content_type: str
    """For a stream."""

    head_first: bool
    """Whether a stream's head goes out before anything is known, so that even early errors are part of the answer."""

    def format(self, prompt: int, events: Sequence[Event]) -> bytes:
        """The bytes for events of one prompt that came together; empty if they mean nothing to the client."""
        ...

    def end(self, usage: Usage) -> bytes:
        """The end of a stream whose events have all been formatted."""
        ...

    def failure(self, error: DrivetrainError) -> bytes:
        """The end of a stream that broke."""
        ...

    def whole(self, results: Sequence[Result], usage: Usage) -> dict[str, Any]:
        """The answer as one JSON object."""
        ...


async def answer(
    exchange: Exchange,
    context: Context,
    model: str | None,
    parsed: ParsedRequest,
    make_formatter: Callable[[ParsedRequest], Formatter],
) -> None:
    """Lease the model, submit each prompt, send what comes. Errors before the head is sent are raised."""
    began_ns = time.time_ns()
    formatter = make_formatter(replace(parsed, requests=()))  # it does not need the prompts, and would keep them alive
    writer = (Stream if parsed.stream else Whole)(exchange, formatter, parsed.headers)
    try:
        if parsed.stream and formatter.head_first:
            await exchange.start(200, writer.head())
        lease = context.models.lease(model, parsed.requests[0].timeout_s)
        async with lease as worker:
            writer.shows_cached = shows_cached(exchange.scope, worker.capabilities)
            possible = honoured(parsed, worker.capabilities)
            if possible is not parsed:
                writer.narrow(make_formatter(replace(possible, requests=())), possible.headers)
            fitted = fitting(_within(possible, lease.left_s))
            await _deliver(worker, apart(fitted, exchange.scope, worker.capabilities), writer)
    except DrivetrainError as exc:
        error = _told(exc, parsed, context) if isinstance(exc, InvalidRequest) else exc
        if not exchange.started:
            raise error  # noqa: B904 - the same error, with the endpoint's field names
        context.counts.refused(error)
        record_refusal(context.tracer, exchange.scope, error, began_ns)
        drop_frames(exc)
        await exchange.write(writer.failure(error), last=True)
    except Exception:
        if not exchange.started:
            raise
        _log.exception("failed to write a stream")
        await exchange.write(writer.failure(EngineFailed("the server failed on this stream")), last=True)


def _told(error: InvalidRequest, parsed: ParsedRequest, context: Context) -> InvalidRequest:
    """With the endpoint's name for the field, and the models that have what this one lacks."""
    name = error.param or ""
    if isinstance(error, Unsupported) and name in LACKS:
        error = going_on(error, who_can(context.models, lambda can: name in can.parameters))
    return renamed(error, parsed.names)


async def _deliver(worker: WorkerPort, parsed: ParsedRequest, writer: ResponseWriter) -> None:
    """Run all prompts at once. The first error ends them all, and so does a client that leaves."""
    if parsed.token_ids and not worker.capabilities.tokens:
        raise Unsupported("this model's engine returns text, not token ids", param="return_token_ids")
    check_answers(parsed.requests, worker.capabilities)
    submissions: list[Submission] = []
    try:
        for request in parsed.requests:  # one by one, so that those before a refused one are in the list
            submissions += (worker.submit(request, writer.prompt()),)
        await writer.send(submissions)
    finally:
        left = [submission for submission in submissions if not submission.ended]
        for submission in left:  # all of them before the first await, which may be cancelled
            submission.cancel("the reader closed the request")
        for submission in left:
            await submission.released()


def _within(parsed: ParsedRequest, left_s: float | None) -> ParsedRequest:
    """The same, with the time that is left after waiting for the model."""
    if left_s is None:
        return parsed
    return replace(parsed, requests=tuple(request.having(timeout_s=left_s) for request in parsed.requests))


class ResponseWriter:
    """Writes one answer from the events of all its prompts."""

    def __init__(self, exchange: Exchange, formatter: Formatter, headers: Mapping[str, str]) -> None:
        self._exchange = exchange
        self._formatter = formatter
        self._headers = dict(headers)
        self.shows_cached = True
        self._prompts = 0
        self._finished: list[Usage] = []
        self._error: DrivetrainError | None = None
        self._news = asyncio.Event()

    def narrow(self, formatter: Formatter, headers: Mapping[str, str]) -> None:
        """The model cannot do all that was asked. To be called before anything is formatted."""
        self._formatter, self._headers = formatter, dict(headers)

    def failure(self, error: DrivetrainError) -> bytes:
        """The end of a stream that broke: it goes on where the formatter stopped."""
        return self._formatter.failure(error)

    def prompt(self) -> PromptSink:
        """The sink of one more prompt."""
        self._prompts += 1
        return PromptSink(self, self._prompts - 1)

    def head(self) -> Mapping[str, str]:
        return {"content-type": self._formatter.content_type, **_STREAMED, **self._headers}

    async def send(self, submissions: Sequence[Submission]) -> None:
        """Return when everything has been sent. Raises the error that ended a prompt."""
        raise NotImplementedError

    @property
    def unread(self) -> int:
        return 0

    def take(self, prompt: int, events: Sequence[Event]) -> None:
        raise NotImplementedError

    def fail(self, error: DrivetrainError) -> None:
        self._error = self._error or error
        self._news.set()

    @property
    def _running(self) -> bool:
        return self._error is None and len(self._finished) < self._prompts

    def _usage(self) -> Usage:
        """For all prompts together."""
        return Usage(
            sum(u.prompt_tokens for u in self._finished),
            sum(u.completion_tokens for u in self._finished),
            sum(u.cached_tokens for u in self._finished) if self.shows_cached else 0,
            reasoning_tokens=sum(u.reasoning_tokens for u in self._finished),
        )


class PromptSink:
    """The `EventSink` of one prompt."""

    __slots__ = ("_number", "_writer")

    def __init__(self, writer: ResponseWriter, number: int) -> None:
        self._writer = writer
        self._number = number

    @property
    def unread(self) -> int:
        return self._writer.unread

    @property
    def last_read(self) -> float:
        """Always now: the connection itself cuts off a client that takes nothing."""
        return time.monotonic()

    def take(self, events: Sequence[Event]) -> None:
        try:
            self._writer.take(self._number, events)
        except Exception:  # noqa: BLE001 - even a bug of ours must end the answer with a typed error
            _log.exception("failed to write an answer")
            self._writer.fail(EngineFailed("the server failed on this stream"))

    def fail(self, error: DrivetrainError) -> None:
        self._writer.fail(error)


class Whole(ResponseWriter):
    """One JSON object at the end."""

    def take(self, prompt: int, events: Sequence[Event]) -> None:
        if type(last := events[-1]) is Finished:
            self._finished.append(last.usage)
            self._news.set()

    async def send(self, submissions: Sequence[Submission]) -> None:
        while self._running:
            self._news.clear()
            await self._news.wait()
        if self._error is not None:
            raise self._error
        results = [submission.result() for submission in submissions]
        if truncated := sum(result.truncated_tokens for result in results):
            self._headers[TRUNCATED_HEADER] = str(truncated)
        response = json_response(await encoded(self._formatter.whole(results, self._usage())), headers=self._headers)
        await response(self._exchange.scope, self._exchange.receive, self._exchange.send)


class Stream(ResponseWriter):
    """Parts, each as soon as it comes. The last events go out with the end, so that a client wakes up once for both."""

    def __init__(self, exchange: Exchange, formatter: Formatter, headers: Mapping[str, str]) -> None:
        super().__init__(exchange, formatter, headers)
        self._waiting: deque[tuple[int, Sequence[Event], int]] = deque()
        """Prompt, events, and how many steps it takes to format them."""
        self._steps = 0
        """The sum over all that wait."""
        self._unsent = b""
        self._begun, self._has_output = 0, False
        self._open = False
        """The connection has taken everything so far: the next events are written at once."""

    @property
    def unread(self) -> int:
        """0 before the head is sent: until then the client has nothing to read."""
        return sum(len(events) for _, events, _ in self._waiting) if self._exchange.started else 0

    def take(self, prompt: int, events: Sequence[Event]) -> None:
        if type(last := events[-1]) is Finished:
            self._finished.append(last.usage)
        elif self._open:
            data = self._formatter.format(prompt, events)
            if not data or self._exchange.write_now(data):
                return
            self._unsent, events = data, ()
        if events:
            steps = _steps(events)
            self._waiting.append((prompt, events, steps))
            self._steps += steps
            if not self._exchange.started:
                starts = sum(type(event) is Started for event in events)
                self._begun, self._has_output = self._begun + starts, self._has_output or len(events) > starts
        self._open = False
        self._news.set()

    async def send(self, submissions: Sequence[Submission]) -> None:
        await self._until_first_output()
        if not self._exchange.started:
            await self._exchange.start(200, self.head())
        while self._running or self._steps > AT_ONCE:
            self._news.clear()
            if data := self._formatted():
                await self._exchange.write(data)
                if self._waiting:
                    await asyncio.sleep(0)  # so that a client that takes everything at once does not hold up others
            elif not self._waiting:
                self._open = True
                await self._news.wait()
        last = self._formatted()
        if self._error is not None:
            if last:
                await self._exchange.write(last)
            raise self._error
        await self._exchange.write(last + self._formatter.end(self._usage()), last=True)

    async def _until_first_output(self) -> None:
        """Wait until every prompt has started and a first token came: after that no error status can be sent.

        A list of prompts is held back until the last one is admitted; the worker's limits bound its memory.
        """
        while not self._formatter.head_first and self._running and not self._ready():
            self._news.clear()
            await self._news.wait()
        if self._error is not None:
            raise self._error
        if truncated := sum(event.truncated_tokens for event in self._starts()):
            self._headers[TRUNCATED_HEADER] = str(truncated)

    def _ready(self) -> bool:
        return self._begun == self._prompts and self._has_output

    def _starts(self) -> list[Started]:
        return [event for _, events, _ in self._waiting for event in events if isinstance(event, Started)]

    def _formatted(self) -> bytes:
        """The backlog, or as much as may be done in one go. Adjacent events of one prompt are formatted together."""
        parts, self._unsent = [self._unsent], b""
        for prompt, batches in groupby(self._backlog(), key=itemgetter(0)):
            parts.append(self._formatter.format(prompt, [event for _, events, _ in batches for event in events]))
        return b"".join(parts)

    def _backlog(self) -> Iterator[tuple[int, Sequence[Event], int]]:
        left = AT_ONCE
        while self._waiting and left > 0:
            batch = self._waiting.popleft()
            left -= batch[2]
            self._steps -= batch[2]
            yield batch


def _steps(events: Sequence[Event]) -> int:
    entries = (entry for event in events if isinstance(event, Delta) for entry in event.logprobs or ())
    return 1 + sum(1 + len(entry.top) for entry in entries) // LOGPROBS_A_STEP

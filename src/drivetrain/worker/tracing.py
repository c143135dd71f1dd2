"""What a worker tells a tracer: one span a request, with its phases as children. All is written at the end, from the
times that the request noted, so that a token costs nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from opentelemetry.trace import INVALID_SPAN, Span

from drivetrain.core.errors import DrivetrainError
from drivetrain.core.request import GenerateRequest
from drivetrain.core.results import Embeddings, Ranking
from drivetrain.telemetry import content, genai
from drivetrain.telemetry.genai import Operation, Value
from drivetrain.telemetry.tracing import GenAiTracer, headers_below
from drivetrain.telemetry.w3c import trace_context
from drivetrain.worker.run import Run

_log = logging.getLogger(__name__)

RESTARTED = "drivetrain.restarted"
"""The event of a request whose engine failed before it gave anything: it goes on with the next one."""

Marks = Sequence[tuple[str, float | None]]
"""Phases in their order, and when each one began by the monotonic clock: None if it never did."""


@dataclass(frozen=True, slots=True)
class Instant:
    """One moment by both clocks: what is told of a request follows the one that nobody sets."""

    ns: int = field(default_factory=time.time_ns)
    monotonic: float = field(default_factory=time.monotonic)

    def at(self, monotonic: float) -> int:
        return self.ns + max(0, round((monotonic - self.monotonic) * 1e9))


class Traces:
    """The spans of one worker. `engine` is known once the model is loaded. Without a tracer nothing is done for any."""

    def __init__(self, tracer: GenAiTracer | None, model: str) -> None:
        self._tracer = tracer
        self._model = content.utf8(model)
        self.engine = ""

    def load(self) -> Span:
        if self._tracer is None:
            return INVALID_SPAN
        return self._tracer.start("drivetrain.load", attributes={"gen_ai.request.model": self._model})

    def refuse(self, operation: Operation, error: DrivetrainError, parent: Mapping[str, str] | None) -> None:
        if self._tracer is not None:
            began_ns = time.time_ns()
            self._tracer.refuse(operation, error, model=self._model, parent=_headers(parent), began_ns=began_ns)

    def request(self, request: GenerateRequest) -> RequestTrace | NoTrace:
        if self._tracer is None:
            return NO_TRACE if request.trace_context is None else NoTrace(trace_context(request.trace_context))
        return RequestTrace(self._open(self._tracer, operation_of(request), request.trace_context))

    def texts(self, operation: Operation, parent: Mapping[str, str] | None) -> TextsTrace | NoTrace:
        if self._tracer is None:
            return NoTrace(trace_context(_headers(parent)))
        return TextsTrace(self._open(self._tracer, operation, parent))

    def _open(self, tracer: GenAiTracer, operation: Operation, parent: Mapping[str, str] | None) -> OpenSpan:
        opening = Instant()
        span = tracer.request(operation, self._model, _headers(parent), opening.ns)
        return OpenSpan(tracer, span, opening, genai.identity(operation, self._model), self.engine)


def _headers(given: object) -> Mapping[str, str] | None:
    """What a caller in Python gave for trace headers, where it is that: a refused request has a span as well."""
    if isinstance(given, Mapping) and all(isinstance(text, str) for pair in given.items() for text in pair):
        return given
    return None


def operation_of(request: GenerateRequest) -> Operation:
    return Operation.TEXT_COMPLETION if request.messages is None else Operation.CHAT


@dataclass(frozen=True, slots=True)
class OpenSpan:
    """A span that waits for the end of its request, and what every request's has in common."""

    tracer: GenAiTracer
    span: Span
    opening: Instant
    identity: dict[str, Value]
    engine: str

    @property
    def recorded(self) -> bool:
        """If not, what only its attributes need does not have to be worked out."""
        return self.span.is_recording()

    def restarted(self, error: DrivetrainError) -> None:
        try:
            self.span.add_event(RESTARTED, {"error.type": error.code}, self.opening.at(time.monotonic()))
        except Exception:  # noqa: BLE001 - whoever looks on must not keep a request from going on
            _log.exception("a request observer failed")

    def close(self, marks: Marks, ended: float, error: BaseException | None) -> None:
        kind = genai.error_type(error)
        if self.recorded:
            self.span.set_attributes(
                {"gen_ai.response.model": self.identity["gen_ai.request.model"], "drivetrain.engine": self.engine}
            )
            self._phases(marks, ended, kind)
        self.measure(genai.REQUEST_DURATION, ended - self.opening.monotonic, kind)
        self.tracer.end(self.span, error, self.opening.at(ended))

    def _phases(self, marks: Marks, ended: float, kind: str | None) -> None:
        """Each one lasts until the next; an error is that of the last."""
        begun = [(name, at) for name, at in marks if at is not None]
        for place, (name, began) in enumerate(begun):
            last = place == len(begun) - 1
            end = ended if last else begun[place + 1][1]
            self.tracer.child(self.span, name, self.opening.at(began), self.opening.at(end), kind if last else None)

    def measure(self, name: str, seconds: float, kind: str | None = None) -> None:
        more = {"gen_ai.response.model": self.identity["gen_ai.request.model"]} | ({"error.type": kind} if kind else {})
        self.tracer.measure(self.span, name, max(0.0, seconds), self.identity | more)


class NoTrace:
    """Of a request that nobody traces here. Its caller may, and so may another server that is asked for it."""

    def __init__(self, context: Mapping[str, str] | None) -> None:
        self.context = context

    def phase(self, name: str) -> None:
        return None

    def restarted(self, error: DrivetrainError) -> None:
        return None

    def close(self, answered: object, error: BaseException | None) -> None:
        return None


NO_TRACE = NoTrace(None)


class RequestTrace:
    """The span of one request for text."""

    def __init__(self, opened: OpenSpan) -> None:
        self._opened = opened

    @property
    def context(self) -> Mapping[str, str] | None:
        return headers_below(self._opened.span)

    def restarted(self, error: DrivetrainError) -> None:
        self._opened.restarted(error)

    def close(self, run: Run, error: DrivetrainError | None) -> None:
        """Called once, by the run's one ending."""
        times, opened = run.times, self._opened
        assert times.ended is not None
        marks = [
            ("queue", times.entered),
            ("prepare", times.admitted),
            ("prefill", times.prepared),
            ("decode", times.first_token),
        ]
        try:
            if opened.recorded:
                opened.span.set_attributes(asked(run.request) | _answered(run))
                if opened.tracer.content:
                    opened.span.set_attributes(_said(run))
            if error is None:
                self._measure_tokens(run)
        finally:
            opened.close(marks, times.ended, error)

    def _measure_tokens(self, run: Run) -> None:
        times, tokens = run.times, run.usage.completion_tokens
        if times.first_token is None or times.ended is None:
            return
        self._opened.measure(genai.TIME_TO_FIRST_TOKEN, times.first_token - self._opened.opening.monotonic)
        if tokens > 1:
            self._opened.measure(genai.TIME_PER_OUTPUT_TOKEN, (times.ended - times.first_token) / (tokens - 1))


class TextsTrace:
    """The span of one request for vectors or scores."""

    def __init__(self, opened: OpenSpan) -> None:
        self._opened = opened
        self._marks: list[tuple[str, float | None]] = []

    @property
    def context(self) -> Mapping[str, str] | None:
        return headers_below(self._opened.span)

    def phase(self, name: str) -> None:
        self._marks.append((name, time.monotonic()))

    def restarted(self, error: DrivetrainError) -> None:
        """It is in the queue again, as if it had not left it."""
        del self._marks[1:]
        self._opened.restarted(error)

    def close(self, made: Embeddings | Ranking | None, error: BaseException | None) -> None:
        try:
            if made is not None and self._opened.recorded:
                self._opened.span.set_attributes(_made(made))
            self._opened.close(self._marks, time.monotonic(), error)
        except Exception:  # noqa: BLE001 - whoever looks on must not take an ending away
            _log.exception("a request observer failed")


def _made(made: Embeddings | Ranking) -> dict[str, Value]:
    told: dict[str, Value] = {"gen_ai.usage.input_tokens": made.usage.prompt_tokens}
    if isinstance(made, Embeddings):
        return told | {"gen_ai.embeddings.dimension.count": len(made.vectors[0])}
    return told | {"gen_ai.usage.output_tokens": made.usage.completion_tokens}


def asked(request: GenerateRequest) -> dict[str, Value]:
    """What the caller stated of what the conventions name. Not the stops: they are text of the caller's."""
    stated: dict[str, Value | None] = {
        "gen_ai.request.max_tokens": request.max_tokens,
        "gen_ai.request.choice.count": None if request.n == 1 else request.n,
        "gen_ai.request.seed": request.seed,
        "gen_ai.request.temperature": request.temperature,
        "gen_ai.request.top_p": request.top_p,
        "gen_ai.request.top_k": None if request.top_k is None else float(request.top_k),
        "gen_ai.request.frequency_penalty": request.frequency_penalty,
        "gen_ai.request.presence_penalty": request.presence_penalty,
    }
    return {name: value for name, value in stated.items() if value is not None}


def _answered(run: Run) -> dict[str, Value]:
    found: dict[str, Value] = {"gen_ai.response.id": run.request_id}
    choices = run.choices
    if choices:
        found["gen_ai.response.finish_reasons"] = tuple(map(content.finish_reason, choices))
        found["gen_ai.usage.input_tokens"] = run.usage.prompt_tokens
        found["gen_ai.usage.output_tokens"] = run.usage.completion_tokens
        found["gen_ai.usage.cache_read.input_tokens"] = run.usage.cached_tokens
    return found


def _said(run: Run) -> dict[str, Value]:
    said: dict[str, Value] = {"gen_ai.input.messages": content.input_messages(run.request)}
    if tools := run.request.offered_tools:
        said["gen_ai.tool.definitions"] = content.tool_definitions(tools)
    if run.request.stop:
        said["gen_ai.request.stop_sequences"] = run.request.stop
    if choices := run.choices:
        said["gen_ai.output.messages"] = content.output_messages(choices)
    return said

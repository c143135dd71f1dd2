"""Counts over a model's requests, and the times of each: the same on every engine, cheap enough to update per token.

Plain values, written and read (by `/metrics`) on one event loop.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from drivetrain.core.errors import (
    Cancelled,
    ContextOverflow,
    DeadlineExceeded,
    DeviceLost,
    DrivetrainError,
    EngineFailed,
    InvalidRequest,
    NotLoaded,
    NotReady,
    OutOfMemory,
    Overloaded,
    Unsupported,
)
from drivetrain.core.events import Started
from drivetrain.core.results import NOTHING_COUNTED, DeviceMemory, EngineCounts, FinishReason, Metrics, Usage

RECENT = 50

FINISHED = "finished"
ENDINGS = (
    FINISHED,
    *(
        error.code
        for error in (
            InvalidRequest, Unsupported, ContextOverflow, Overloaded, NotReady, NotLoaded, DeadlineExceeded, Cancelled,
            EngineFailed, OutOfMemory, DeviceLost,
        )
    ),
)  # fmt: skip
"""Every way a request can end, as `Stats.endings` names them."""

# Bounds in seconds; where it matters, neighbours are about a factor of 1.5 apart.
STEP_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.04, 0.06, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0)
WAIT_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, *(10.0 * 2**i for i in range(8)))
WHOLE_S = (0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0)
LENGTH = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)


@dataclass(slots=True)
class Histogram:
    """`counts` has one number per bound, for values up to it and above the previous one, and one for all above."""

    bounds: Sequence[float]
    counts: list[int] = field(default_factory=list)
    sum: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        return sum(self.counts)


@dataclass(slots=True)
class Times:
    """When things happened to one request, by `time.monotonic()`; `wall` is the wall-clock time at the start."""

    entered: float = field(default_factory=time.monotonic)
    wall: float = field(default_factory=time.time)
    admitted: float | None = None
    prepared: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    ended: float | None = None
    last_tokens: dict[int, float] = field(default_factory=dict)
    """When the last token of each choice came."""

    def metrics(
        self, usage: Usage, memory: tuple[DeviceMemory, ...] = (), average: tuple[DeviceMemory, ...] = ()
    ) -> Metrics:
        """Only for a request that has ended."""
        assert self.ended is not None
        admitted = self.admitted if self.admitted is not None else self.ended
        prepared = self.prepared if self.prepared is not None else self.ended
        decode_s = (self.last_token or 0.0) - (self.first_token or 0.0)
        tokens = usage.completion_tokens
        return Metrics(
            queue_s=admitted - self.entered,
            prompt_s=max(0.0, prepared - admitted),
            first_token_s=None if self.first_token is None else self.first_token - self.entered,
            total_s=self.ended - self.entered,
            tokens_per_s=(tokens - 1) / decode_s if tokens > 1 and decode_s > 0 else None,
            started_at=self.wall,
            memory=memory,
            average_memory=average,
        )


class EndedRequest(Protocol):
    """The outcome of a request."""

    @property
    def request_id(self) -> str: ...

    @property
    def model(self) -> str: ...

    @property
    def usage(self) -> Usage: ...

    @property
    def finish_reasons(self) -> Sequence[FinishReason]: ...


@dataclass(slots=True)
class Stats:
    """Each request, refused ones included, counts once in `endings`, by how it ended: finished, or the error's code.

    `answers` counts choices by finish reason. `completion_tokens` grows as tokens come, the other two when a request
    ends; in the end each is the sum over the requests' usage.
    """

    endings: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    constrained: Counter[str] = field(default_factory=Counter)
    """Requests whose answers are held to a grammar, by its kind, one of `GRAMMAR_KINDS`; counted as they start."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    restarts: int = 0
    """How often the engine failed and was reloaded."""
    engine: EngineCounts = NOTHING_COUNTED
    """Over all engines so far, as of the last request's end, or of the last look at the engine."""
    load_wait_s: Histogram = field(default_factory=lambda: Histogram(WAIT_S))
    """How long requests waited for their model to load, if it did. Not part of the other times."""
    queue_s: Histogram = field(default_factory=lambda: Histogram(WAIT_S))
    """From a request's arrival to its slot, if it got one."""
    compile_s: Histogram = field(default_factory=lambda: Histogram(WAIT_S))
    """How long requests waited for a new grammar to be compiled. A kept one takes no time and is not counted."""
    first_token_s: Histogram = field(default_factory=lambda: Histogram(WAIT_S))
    """From a request's arrival to its first token."""
    between_tokens_s: Histogram = field(default_factory=lambda: Histogram(STEP_S))
    """Between two tokens of a choice; tokens that came together share the time equally."""
    prefill_s: Histogram = field(default_factory=lambda: Histogram(WAIT_S))
    """From the slot to the first token."""
    decode_s: Histogram = field(default_factory=lambda: Histogram(WHOLE_S))
    """From the first token to the last, for requests that finished with more than one."""
    request_s: Histogram = field(default_factory=lambda: Histogram(WHOLE_S))
    """From a request's arrival to its end, if it got a slot."""
    prompt_length: Histogram = field(default_factory=lambda: Histogram(LENGTH))
    answer_length: Histogram = field(default_factory=lambda: Histogram(LENGTH))
    """Tokens in all choices of a request, for requests that finished."""
    recent_first_token_s: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    def count_admitted(self, times: Times) -> None:
        """A request got its slot for the first time."""
        assert times.admitted is not None
        self.queue_s.observe(times.admitted - times.entered)

    def count_started(self, started: Started) -> None:
        if started.grammar is not None:
            self.constrained[started.grammar] += 1

    def count_tokens(self, times: Times, index: int, number: int) -> None:
        """Tokens of one choice that have just come, together."""
        now = time.monotonic()
        before, times.last_token, times.last_tokens[index] = times.last_tokens.get(index), now, now
        self.completion_tokens += number
        if before is not None:
            self.between_tokens_s.observe((now - before) / number, number)
        elif times.first_token is None:
            times.first_token = now
            self.first_token_s.observe(now - times.entered)
            self.prefill_s.observe(now - (times.admitted or now))
            self.recent_first_token_s.append(now - times.entered)

    def count(self, times: Times, answer: EndedRequest, error: DrivetrainError | None) -> None:
        """Count what was not counted while the request ran. Called once it has ended."""
        usage = answer.usage
        assert times.ended is not None
        self.endings[ending(error)] += 1
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cached_tokens
        if times.admitted is not None:
            self.request_s.observe(times.ended - times.entered)
        if error is None:
            if times.first_token is not None and times.last_token is not None and usage.completion_tokens > 1:
                self.decode_s.observe(times.last_token - times.first_token)
            self.answers.update(answer.finish_reasons)
            self.prompt_length.observe(usage.prompt_tokens)
            self.answer_length.observe(usage.completion_tokens)


def ending(error: BaseException | None) -> str:
    """One of `ENDINGS`."""
    if error is None:
        return FINISHED
    return error.code if isinstance(error, DrivetrainError) else Cancelled.code

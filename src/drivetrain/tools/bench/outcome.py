"""The outcome of one request, and of a round of requests. Times are `time.perf_counter()` seconds."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from drivetrain.tools.bench.workload import Closed, Level


@dataclass(frozen=True, slots=True)
class Failure:
    """`kind` is what failures are counted by: an error's code, `http 429`, `timeout`, `connection`, `broken`."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutcome:
    """`events` are the times at which text came. Tokens are counted by the answer's usage.

    If an answer came without usage, `counted` is False and each event counts as one token.
    """

    started: float
    ended: float
    events: tuple[float, ...] = ()
    prompt_tokens: int | None = None
    completion_tokens: int = 0
    cached_tokens: int = 0
    counted: bool = True
    failure: Failure | None = None

    @property
    def first_s(self) -> float | None:
        return self.events[0] - self.started if self.events else None

    @property
    def total_s(self) -> float:
        return self.ended - self.started

    @property
    def gaps_s(self) -> list[float]:
        """Between one event and the next."""
        return [after - before for before, after in pairwise(self.events)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Requests of one level. `complete` is False if it was interrupted; it then holds what had ended."""

    level: Level
    started: float
    ended: float
    outcomes: tuple[RequestOutcome, ...]
    complete: bool = True

    @property
    def answers(self) -> list[RequestOutcome]:
        return [outcome for outcome in self.outcomes if outcome.failure is None]

    @property
    def failures(self) -> Counter[str]:
        return Counter(outcome.failure.kind for outcome in self.outcomes if outcome.failure is not None)

    @property
    def wall_s(self) -> float:
        return self.ended - self.started

    @property
    def tokens_per_s(self) -> float:
        """From complete answers only; the text of a failed request does not count."""
        return sum(answer.completion_tokens for answer in self.answers) / self.wall_s

    @property
    def requests_per_s(self) -> float:
        return len(self.answers) / self.wall_s

    @property
    def first_s(self) -> float | None:
        """The median time to the first token."""
        times = [answer.first_s for answer in self.answers if answer.first_s is not None]
        return statistics.median(times) if times else None

    @property
    def decode_per_s(self) -> float | None:
        """Tokens per second while every stream was decoding: from the last first token to the first end.

        None if there was no such time or a request failed, and in an open loop.
        """
        if not isinstance(self.level, Closed) or len(self.answers) < len(self.outcomes):
            return None
        if self.level.streams == 1:
            windows = [_Window(answer, answer.events[0], answer.events[-1]) for answer in self.answers if answer.events]
            seconds = sum(window.seconds for window in windows)
        elif all(answer.events for answer in self.answers):
            begin = max(answer.events[0] for answer in self.answers)
            end = min(answer.events[-1] for answer in self.answers)
            windows = [_Window(answer, begin, end) for answer in self.answers]
            seconds = end - begin
        else:
            return None
        return sum(window.tokens for window in windows) / seconds if seconds > 0 else None


@dataclass(frozen=True, slots=True)
class _Window:
    """The part of an answer after `begin` and up to `end`."""

    answer: RequestOutcome
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    @property
    def tokens(self) -> float:
        events = self.answer.events
        inside = bisect_right(events, self.end) - bisect_right(events, self.begin)
        return self.answer.completion_tokens * inside / len(events)

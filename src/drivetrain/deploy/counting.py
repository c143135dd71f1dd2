"""The counts of a handle: the same series as those of a worker, seen from where the events arrive."""

from __future__ import annotations

import time
from collections.abc import Sequence

from drivetrain.core.errors import DrivetrainError
from drivetrain.core.events import Delta, Event, Started
from drivetrain.core.stats import Stats, ending
from drivetrain.deploy.collecting import Collecting


class Counting:
    """Of one request. Its slot is known by the first event only, so `queue_s` holds the way and the prompt too."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats
        self._entered = time.monotonic()
        self._started: float | None = None
        self._first: float | None = None
        self._last: dict[int, float] = {}
        self._tokens = 0

    def take(self, events: Sequence[Event]) -> None:
        now = time.monotonic()
        for event in events:
            if type(event) is Delta and event.token_ids:
                self._count(event.index, len(event.token_ids), now)
            elif type(event) is Started:
                self._started = now
                self._stats.queue_s.observe(now - self._entered)

    def _count(self, index: int, number: int, now: float) -> None:
        stats, last = self._stats, self._last.get(index)
        self._tokens += number
        stats.completion_tokens += number
        if last is not None:
            stats.between_tokens_s.observe((now - last) / number, number)
        self._last[index] = now
        if self._first is None:
            self._first = now
            stats.first_token_s.observe(now - self._entered)
            stats.prefill_s.observe(now - (self._started or now))
            stats.recent_first_token_s.append(now - self._entered)

    def end(self, collecting: Collecting, error: DrivetrainError | None) -> None:
        """Tokens that no delta brought, of a stop that was cut off, are known by the usage."""
        stats, usage, now = self._stats, collecting.usage, time.monotonic()
        stats.endings[ending(error)] += 1
        stats.prompt_tokens += usage.prompt_tokens
        stats.cached_tokens += usage.cached_tokens
        stats.completion_tokens += usage.completion_tokens - self._tokens
        if self._started is not None:
            stats.request_s.observe(now - self._entered)
        if error is None:
            if self._first is not None and usage.completion_tokens > 1:
                stats.decode_s.observe(max(self._last.values()) - self._first)
            stats.answers.update(collecting.finish_reasons)
            stats.prompt_length.observe(usage.prompt_tokens)
            stats.answer_length.observe(usage.completion_tokens)

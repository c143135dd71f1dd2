"""The counts of a handle: the same series as those of a worker, seen from where the events arrive."""

from __future__ import annotations

import time
from collections.abc import Sequence

from drivetrain.core.errors import DrivetrainError
from drivetrain.core.events import Delta, Event, Started
from drivetrain.core.stats import Stats, Times
from drivetrain.deploy.collecting import Collecting


class Counting:
    """Of one request. Its slot is known by the first event only, so `queue_s` holds the way and the prompt too."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats
        self._times = Times()
        self._tokens = 0

    def take(self, events: Sequence[Event]) -> None:
        stats, times = self._stats, self._times
        for event in events:
            if type(event) is Delta and event.token_ids:
                self._tokens += len(event.token_ids)
                stats.count_tokens(times, event.index, len(event.token_ids))
            elif type(event) is Started:
                times.admitted = time.monotonic()
                stats.queue_s.observe(times.admitted - times.entered)

    def end(self, collecting: Collecting, error: DrivetrainError | None) -> None:
        """Tokens that no delta brought, of a stop that was cut off, are known by the usage."""
        self._times.ended = time.monotonic()
        self._stats.completion_tokens += collecting.usage.completion_tokens - self._tokens
        self._stats.count(self._times, collecting, error)

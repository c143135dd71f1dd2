"""The load: how many requests at once or per second, how long they are, and when each one is sent."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The same for all sides and levels of a run. All prompts have their first `shared_prefix` tokens in common."""

    prompt_tokens: int
    max_tokens: int
    shared_prefix: int
    seed: int
    rounds: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Closed:
    """Concurrent clients, each of which sends its next request when it has its answer."""

    streams: int
    requests: int = 1
    """For each stream, one after the other."""

    @property
    def num_requests(self) -> int:
        return self.streams * self.requests

    @property
    def label(self) -> str:
        return f"{self.streams} stream" + ("s" if self.streams > 1 else "")


@dataclass(frozen=True, slots=True)
class Open:
    """Requests at random times, `rate` per second on average, whether or not earlier ones are answered."""

    rate: float
    due_s: tuple[float, ...]
    """When each is sent, in seconds from the start of the round."""

    @property
    def num_requests(self) -> int:
        return len(self.due_s)

    @property
    def label(self) -> str:
        return f"{self.rate:g} requests/s"

    def first(self, count: int) -> Open:
        return Open(self.rate, self.due_s[:count])


Level = Closed | Open


def arrivals(rate: float, seed: int, *, count: int | None = None, duration_s: float | None = None) -> Open:
    """A Poisson process: `count` requests, or those of `duration_s` but at least one. The seed decides the times."""
    rng = random.Random(f"arrivals/{seed}/{rate}")  # noqa: S311 - not for secrets
    times = itertools.accumulate(rng.expovariate(rate) for _ in itertools.count())
    if count is not None:
        return Open(rate, tuple(itertools.islice(times, count)))
    assert duration_s is not None
    first = next(times)
    return Open(rate, (first, *itertools.takewhile(lambda at: at < duration_s, times)))

"""What is asked: how many requests side by side or a second, how long they are, and when each one is sent."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One for all sides and levels of a run. `shared_prefix` tokens of each prompt are the same in all of them."""

    prompt_tokens: int
    max_tokens: int
    shared_prefix: int
    seed: int
    rounds: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Closed:
    """So many clients side by side; each sends its next request when it has its answer."""

    streams: int
    requests: int = 1
    """One after the other, of each stream."""

    @property
    def num_requests(self) -> int:
        return self.streams * self.requests

    @property
    def label(self) -> str:
        return f"{self.streams} stream" + ("s" if self.streams > 1 else "")


@dataclass(frozen=True, slots=True)
class Open:
    """Requests that come by chance, so many a second on average, whether or not earlier ones are answered."""

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
    """A Poisson process: so many requests, or those of so many seconds, at least one. The seed decides them all."""
    rng = random.Random(f"arrivals/{seed}/{rate}")  # noqa: S311 - not for secrets
    times = itertools.accumulate(rng.expovariate(rate) for _ in itertools.count())
    if count is not None:
        return Open(rate, tuple(itertools.islice(times, count)))
    assert duration_s is not None
    first = next(times)
    return Open(rate, (first, *itertools.takewhile(lambda at: at < duration_s, times)))

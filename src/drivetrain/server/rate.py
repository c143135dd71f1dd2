"""How fast tokens come, for the page's live panel, from the difference between two looks at the workers' counts."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping

WINDOW_S = 5.0


class Rate:
    """A rate over about the last `WINDOW_S` seconds, or since the last look if that is longer ago."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: Mapping[str, int] = {}
        self._total = 0
        self._looks: deque[tuple[float, int]] = deque([(clock(), 0)])

    def look(self, counts: Mapping[str, int]) -> float:
        """The rate of all counts together. A count that is new since the last look starts now."""
        now, known = self._clock(), self._known
        self._total += sum(max(0, number - known.get(name, number)) for name, number in counts.items())
        self._known = dict(counts)
        while len(self._looks) > 1 and self._looks[1][0] <= now - WINDOW_S:
            self._looks.popleft()
        then, before = self._looks[0]
        if now - self._looks[-1][0] >= WINDOW_S / 20:
            self._looks.append((now, self._total))
        return (self._total - before) / (now - then) if now > then else 0.0

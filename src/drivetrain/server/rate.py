"""How fast tokens come, for the page's live panel: taken between looks at what the workers counted."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

WINDOW_S = 5.0


class Rate:
    """A rate over about the last `WINDOW_S` seconds, or since the last look if that is longer ago."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._looks: deque[tuple[float, int]] = deque([(clock(), 0)])

    def look(self, number: int) -> float:
        """The rate at which a count has come to `number`."""
        now = self._clock()
        while len(self._looks) > 1 and self._looks[1][0] <= now - WINDOW_S:
            self._looks.popleft()
        then, before = self._looks[0]
        if now - self._looks[-1][0] >= WINDOW_S / 20:
            self._looks.append((now, number))
        return max(0.0, (number - before) / (now - then)) if now > then else 0.0

"""What the server saw pass by, for the page's live panel: tokens as they go out, first-token times, memory."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from drivetrain.core.events import Delta, Event, Finished
from drivetrain.core.results import DeviceMemory

WINDOW_S = 5.0
RECENT = 50


class Gauges:
    """`note` is told of all events that go out; a rate of tokens is taken between looks at it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.tokens = 0
        self.memory: tuple[DeviceMemory, ...] = ()
        self.first_token_s: deque[float] = deque(maxlen=RECENT)
        self.first_token_count = 0
        self.first_token_sum = 0.0
        self._clock = clock
        self._looks: deque[tuple[float, int]] = deque([(clock(), 0)])

    def note(self, events: Sequence[Event]) -> None:
        for event in events:
            if type(event) is Delta:
                self.tokens += len(event.token_ids)
            elif type(event) is Finished:
                self._finished(event)

    def _finished(self, event: Finished) -> None:
        self.memory = event.metrics.memory
        seconds = event.metrics.first_token_s
        if seconds is not None:
            self.first_token_s.append(seconds)
            self.first_token_count += 1
            self.first_token_sum += seconds

    def tokens_per_s(self) -> float:
        """Over about the last `WINDOW_S` seconds, or since the last look if that is longer ago."""
        now = self._clock()
        while len(self._looks) > 1 and self._looks[1][0] <= now - WINDOW_S:
            self._looks.popleft()
        then, before = self._looks[0]
        if now - self._looks[-1][0] >= WINDOW_S / 20:
            self._looks.append((now, self.tokens))
        return (self.tokens - before) / (now - then) if now > then else 0.0

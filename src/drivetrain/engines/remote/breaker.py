"""Whether an upstream is usable: a circuit breaker over the outcomes of its requests. The clock is passed in."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from enum import StrEnum

IN_A_ROW = 3
"""Failures in a row that open it."""

WINDOW = 20
MIN_OUTCOMES = 6
"""An outlier: at least half of the last `WINDOW` outcomes are failures, once there are `MIN_OUTCOMES`."""

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """Closed: all requests pass. Open: none, until a pause is over and a probe succeeds.

    Then half open: one request passes, which closes it, or opens it again for twice the pause. Requests that began
    before the last opening say nothing about the upstream that came back and do not count.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.state = BreakerState.CLOSED
        self.openings = 0
        """How often it was opened. A request remembers the value from when it began."""
        self._clock = clock
        self._recent: deque[bool] = deque(maxlen=WINDOW)
        self._in_a_row = 0
        self._pause_s = FIRST_PAUSE_S
        self._until = 0.0
        self._trying = False

    @property
    def lets_pass(self) -> bool:
        return self.state is BreakerState.CLOSED or (self.state is BreakerState.HALF_OPEN and not self._trying)

    @property
    def probe_is_due(self) -> bool:
        return self.state is BreakerState.OPEN and self._clock() >= self._until

    def begin(self) -> int:
        """A request goes out. One of `succeed`, `fail` and `leave` follows, with the value returned here."""
        self._trying = self.state is BreakerState.HALF_OPEN
        return self.openings

    def succeed(self, began: int) -> None:
        if began != self.openings:
            return
        self._note(failed=False)
        if self.state is BreakerState.HALF_OPEN:
            self.state = BreakerState.CLOSED
            self._pause_s = FIRST_PAUSE_S
            self._recent.clear()

    def fail(self, began: int, *, surely: bool = True) -> None:
        """Failures that may be the request's own fault (not `surely`) make no row, but many make an outlier."""
        if began != self.openings:
            return
        self._note(failed=True, in_a_row=surely)
        if self.state is BreakerState.HALF_OPEN:
            self._pause_s = min(self._pause_s * 2, LONGEST_PAUSE_S)
            self.open()
        elif self.state is BreakerState.CLOSED and (self._in_a_row >= IN_A_ROW or self._is_outlier):
            self.open()

    def leave(self, began: int) -> None:
        """The request ended without a verdict: it was cancelled, or the upstream was full."""
        if began == self.openings:
            self._trying = False

    def open(self) -> None:
        self.state = BreakerState.OPEN
        self.openings += 1
        self._until = self._clock() + self._pause_s

    def probed(self, *, well: bool) -> None:
        if self.state is not BreakerState.OPEN:
            return
        if well:
            self.state, self._in_a_row = BreakerState.HALF_OPEN, 0
        else:
            self._pause_s = min(self._pause_s * 2, LONGEST_PAUSE_S)
            self._until = self._clock() + self._pause_s

    @property
    def _is_outlier(self) -> bool:
        return len(self._recent) >= MIN_OUTCOMES and 2 * sum(self._recent) >= len(self._recent)

    def _note(self, *, failed: bool, in_a_row: bool = True) -> None:
        self._trying = False
        self._recent.append(failed)
        self._in_a_row = self._in_a_row + in_a_row if failed else 0

"""How long to wait before each attempt to start again."""

from __future__ import annotations

FIRST_S = 1.0
LONGEST_S = 60.0


class Backoff:
    """1, 2, 4 … 60 seconds. One that lived longer than the longest wait begins anew."""

    def __init__(self) -> None:
        self._next_s = FIRST_S

    def wait_s(self, lived_s: float) -> float:
        """`lived_s` is how long what has ended now had been running; 0 if it never did."""
        if lived_s > LONGEST_S:
            self._next_s = FIRST_S
        now_s, self._next_s = self._next_s, min(LONGEST_S, self._next_s * 2)
        return now_s

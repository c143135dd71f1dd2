"""Notices that a model says the same again and again."""

from __future__ import annotations

from collections import deque

LONGEST_LOOP = 64
"""Tokens of the longest piece whose repetition is noticed."""

REPETITION = "repetition"
"""What such an end is told as, in place of a stop that matched."""


class Loops:
    """For one choice: whether its last tokens are one piece, `most` times in a row."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._recent: deque[int] = deque(maxlen=LONGEST_LOOP)
        """The newest first."""
        self._runs = [0] * LONGEST_LOOP
        """For each distance, how many tokens in a row were the same as the one so far back."""

    def push(self, token_id: int) -> bool:
        runs, found = self._runs, False
        for i, earlier in enumerate(self._recent):
            runs[i] = runs[i] + 1 if earlier == token_id else 0
            found = found or runs[i] >= (i + 1) * (self._most - 1)
        self._recent.appendleft(token_id)
        return found

"""Finds the stop that is completed first in a stream of characters or ids, in one pass for any number of stops."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

S = TypeVar("S", bound=Hashable)


class StopMatcher(Generic[S]):
    """An Aho-Corasick automaton. It never changes once it is built: choices and requests share it.

    States are small integers. `depth(state)` is the length of the longest suffix read that may still grow into a stop:
    that many symbols must be held back.
    """

    ROOT = 0

    def __init__(self, stops: Iterable[Sequence[S]]) -> None:
        self._next: list[dict[S, int]] = [{}]
        self._depth: list[int] = [0]
        self._match: list[Sequence[S] | None] = [None]
        for stop in stops:
            self._add(stop)
        self._fail: list[int] = [0] * len(self._next)
        self._link()
        self._growing = self._growing_depths()
        self.firsts: frozenset[S] = frozenset(self._next[0])

    def step(self, state: int, symbol: S) -> int:
        """The state after one more symbol."""
        nexts = self._next
        while symbol not in nexts[state]:
            if state == 0:
                return 0
            state = self._fail[state]
        return nexts[state][symbol]

    def depth(self, state: int) -> int:
        return self._depth[state]

    def growing(self, state: int) -> int:
        """Like `depth`, without a stop that is already whole and cannot become a longer one."""
        return self._growing[state]

    def match(self, state: int) -> Sequence[S] | None:
        """The longest stop that ends exactly here, if any."""
        return self._match[state]

    def _add(self, stop: Sequence[S]) -> None:
        if not stop:
            raise ValueError("a stop must not be empty")
        state = 0
        for symbol in stop:
            following = self._next[state].get(symbol)
            if following is None:
                following = len(self._next)
                self._next[state][symbol] = following
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._match.append(None)
            state = following
        self._match[state] = stop

    def _growing_depths(self) -> list[int]:
        growing = [0] * len(self._next)
        for state in sorted(range(1, len(self._next)), key=self._depth.__getitem__):
            growing[state] = self._depth[state] if self._next[state] else growing[self._fail[state]]
        return growing

    def _link(self) -> None:
        """Breadth first, so that a state's failure state is finished before the state itself."""
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for symbol, following in self._next[state].items():
                self._fail[following] = self.step(self._fail[state], symbol)
                if self._match[following] is None:
                    self._match[following] = self._match[self._fail[following]]
                queue.append(following)

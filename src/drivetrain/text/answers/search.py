"""Finds the first of several markers in a stream of text: literals all at once, patterns side by side.

Linear in the text: no character is looked at twice, unless a marker turns out to end before it. Of markers that begin
at the same place the longest is found, and of equally long ones the first in order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from drivetrain.text.answers.patterns import LOOK, MATCH, Path, Pattern
from drivetrain.text.stops import StopMatcher

Notes = Mapping[str, int]
"""Positions noted by a pattern on its way: where its groups begin and end."""
_NOTHING: Notes = {}


@dataclass(frozen=True, slots=True)
class Marker:
    """Something to look for, by its literals or by its pattern. `what` is the caller's."""

    what: Any
    literals: tuple[str, ...] = ()
    pattern: Pattern | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """All positions count from the start of the answer."""

    what: Any
    start: int
    end: int
    groups: Mapping[str, tuple[int, int]]
    at_end: bool = False
    """Whether only the end of the answer decided that it is this one."""


class Watch:
    """Markers to look for, in order. It never changes, so answers share it."""

    def __init__(self, markers: Sequence[Marker]) -> None:
        self.markers = tuple(markers)
        self.order: dict[str, int] = {}
        for i, marker in enumerate(self.markers):
            for literal in marker.literals:
                self.order.setdefault(literal, i)
        self.literals: StopMatcher[str] | None = StopMatcher(self.order) if self.order else None
        self.patterns = [(i, marker.pattern) for i, marker in enumerate(self.markers) if marker.pattern is not None]
        self.beginning = self._beginning()

    def _beginning(self) -> re.Pattern[str] | None:
        """Finds the next character that a marker can begin with; None if that may be any."""
        chars = set(self.literals.firsts) if self.literals else set()
        for _, pattern in self.patterns:
            if pattern.start_chars is None:
                return None
            chars |= pattern.start_chars
        return re.compile("[" + "".join(map(re.escape, sorted(chars))) + "]" if chars else "(?!)")


_Thread = tuple[int, int, Notes]
"""The next instruction, where its match began, and what was noted."""


class _Machine:
    """Runs one pattern: all ways through it at once, the preferred ones first, as a backtracking matcher would try."""

    __slots__ = ("_at_start", "_not_empty_at", "_pattern", "_threads", "match")

    def __init__(self, pattern: Pattern, *, at_start: bool, not_empty_at: int | None) -> None:
        self._pattern = pattern
        self._threads: list[_Thread] = []
        self._at_start = at_start
        self._not_empty_at = not_empty_at
        self.match: tuple[int, int, Notes] | None = None

    @property
    def idle(self) -> bool:
        return not self._threads and self.match is None

    @property
    def hold(self) -> int | None:
        """Where the earliest match begins that may still come about or grow."""
        return self._threads[0][1] if self._threads else None

    def step(self, char: str, pos: int) -> None:
        """Read the character at `pos`."""
        if self.match is None:
            self._begin(pos)
        elif not self._threads:
            return
        threads, self._threads = self._threads, []
        seen: set[int] = set()
        tests, paths = self._pattern.tests, self._pattern.paths
        for thread in threads:
            test = tests[thread[0]]
            if test is not None and test(char) and self._follow(paths[thread[0]], thread, pos + 1, seen):
                return

    def finish(self, pos: int) -> None:
        """The text ends at `pos`."""
        if self.match is None:
            self._begin(pos)
        threads, self._threads = self._threads, []
        seen: set[int] = set()
        while threads:
            thread = threads.pop(0)
            at = thread[0]
            if self._pattern.tests[at] is None and at not in seen:
                seen.add(at)
                if self._follow(self._pattern.paths[at], thread, pos, set()):
                    break
                threads[:0], self._threads = self._threads, []
        self._threads = []

    def _begin(self, pos: int) -> None:
        seen = {thread[0] for thread in self._threads}
        self._follow(self._pattern.first, (MATCH, pos, _NOTHING), pos, seen)
        self._at_start = False

    def _follow(self, paths: tuple[Path, ...], thread: _Thread, pos: int, seen: set[int]) -> bool:
        """Whether a way ends in a match: then the less preferred ones no longer count."""
        _, start, noted_before = thread
        for to, noted, at_start in paths:
            if to in seen or (at_start and not self._at_start):
                continue
            notes = {**noted_before, **dict.fromkeys(noted, pos)} if noted else noted_before
            if to == MATCH:
                end = notes.get(LOOK, pos)
                if end == start == self._not_empty_at:
                    continue
                self.match = (start, end, notes)
                return True
            seen.add(to)
            self._threads.append((to, start, notes))
        return False


class Search:
    """One search, from `pos` on. Feed it text until something is found, or `finish` it."""

    def __init__(self, watch: Watch, pos: int, *, at_start: bool, no_empty: bool = False) -> None:
        self._watch = watch
        self._machines = [
            (i, _Machine(pattern, at_start=at_start, not_empty_at=pos if no_empty else None))
            for i, pattern in watch.patterns
        ]
        self._state = StopMatcher.ROOT
        self._best: tuple[int, int, int] | None = None
        self._start = self._pos = pos

    @property
    def hold(self) -> int:
        """Text before this position is certainly not part of a marker."""
        starts = [machine.match[0] for _, machine in self._machines if machine.match is not None]
        starts += [start for start in (self._pending(), self._best and self._best[0]) if start is not None]
        return min(starts, default=self._pos)

    @property
    def pos(self) -> int:
        """Text before this position was read."""
        return self._pos

    def feed(self, text: str, base: int) -> Found | None:
        """`text` is everything from the position `base` on; what was read before is not read again."""
        at, beginning = self._pos - base, self._watch.beginning
        while at < len(text):
            if beginning is not None and self._pos > self._start and self._idle():
                found = beginning.search(text, at)
                if found is None:
                    self._pos = base + len(text)
                    return None
                self._pos = base + found.start()
            char = text[self._pos - base]
            for _, machine in self._machines:
                machine.step(char, self._pos)
            self._pos += 1
            self._step_literals(char)
            if self._anything() and (best := self._decide()) is not None:
                return best
            at = self._pos - base
        return None

    def finish(self) -> Found | None:
        for _, machine in self._machines:
            machine.finish(self._pos)
        self._state = StopMatcher.ROOT
        found = self._decide()
        return None if found is None else replace(found, at_end=True)

    def _anything(self) -> bool:
        return self._best is not None or any(machine.match is not None for _, machine in self._machines)

    def _idle(self) -> bool:
        return self._state == StopMatcher.ROOT and self._best is None and all(m.idle for _, m in self._machines)

    def _pending(self) -> int | None:
        """Where the earliest marker begins that may still come about or grow."""
        starts = [hold for _, machine in self._machines if (hold := machine.hold) is not None]
        if self._watch.literals is not None and (growing := self._watch.literals.growing(self._state)):
            starts.append(self._pos - growing)
        return min(starts, default=None)

    def _step_literals(self, char: str) -> None:
        literals = self._watch.literals
        if literals is None:
            return
        self._state = literals.step(self._state, char)
        whole = literals.match(self._state)
        if whole is not None:
            literal = "".join(whole)
            found = (self._pos - len(literal), -len(literal), self._watch.order[literal])
            self._best = found if self._best is None else min(self._best, found)

    def _decide(self) -> Found | None:
        """The best of all that is found, once nothing that begins as early can still come about."""
        found: list[tuple[tuple[int, int, int], Notes]] = [] if self._best is None else [(self._best, {})]
        pending = self._pending()
        for i, machine in self._machines:
            if machine.match is not None:
                start, end, notes = machine.match
                found.append(((start, start - end, i), notes))
        if not found:
            return None
        (start, minus_length, order), notes = min(found, key=lambda one: one[0])
        if pending is not None and pending <= start:
            return None
        return self._found(self._watch.markers[order], start, start - minus_length, notes)

    def _found(self, marker: Marker, start: int, end: int, notes: Notes) -> Found:
        names = marker.pattern.names if marker.pattern else ()
        groups = {name: (notes["<" + name], notes[">" + name]) for name in names if ">" + name in notes}
        return Found(marker.what, start, end, groups)

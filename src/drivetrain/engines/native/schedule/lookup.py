"""Prompt look-up: ids that may come next, because they did when the sequence said the same before. No tensors here."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

MOST = 15
"""Ids of a draft: with the one before them they fill the rows of a product."""

FIRST = 4
"""The most of a first draft; the next ones may be twice as long as what was right."""

SHORT, LONG = 3, 8
"""How many of the newest ids must have stood together before; after a draft that was all wrong, the longer one."""

_FORM = "I"
_WIDTH = array(_FORM).itemsize
_TRIES = 16
"""Places that match in the middle of an id."""


class Lookup:
    """Of one sequence, whose ids only grow."""

    def __init__(self) -> None:
        self._read = bytearray()
        """The ids, so that the search runs in C."""
        self._most = FIRST
        self._size = SHORT

    def draft(self, ids: Sequence[int], limit: int) -> tuple[int, ...]:
        """At most `limit` ids that may come after these; none if nothing repeats."""
        most = min(limit, self._most)
        if most < 1:
            return ()
        self._read += array(_FORM, ids[len(self._read) // _WIDTH :]).tobytes()
        for size in dict.fromkeys((LONG, self._size)):
            if (after := self._after_last(size)) is not None:
                return _continued(ids, after, most)
        return ()

    def judge(self, right: int) -> None:
        """How many ids of the latest draft were right."""
        self._most = min(max(2 * right, FIRST), MOST)
        self._size = SHORT if right else LONG

    def _after_last(self, size: int) -> int | None:
        """What follows the latest earlier place of the newest `size` ids."""
        newest = self._read[-size * _WIDTH :]
        end = len(self._read) - _WIDTH
        if len(newest) > end:
            return None
        for _ in range(_TRIES):
            at = self._read.rfind(newest, 0, end)
            if at < 0:
                return None
            if at % _WIDTH == 0:
                return at // _WIDTH + size
            end = at + len(newest) - 1
        return None


def _continued(ids: Sequence[int], after: int, count: int) -> tuple[int, ...]:
    """The ids from there on; past the end they repeat, as a text does that runs in a circle."""
    period = len(ids) - after
    return tuple(ids[after + i % period] for i in range(count))

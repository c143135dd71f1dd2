"""What a server puts around the texts that it splits, found by example."""

from __future__ import annotations

from collections.abc import Sequence


def frame(plain: Sequence[int], framed: Sequence[int]) -> list[int]:
    """The ids that a server begins a text with, from one text split with and without them.

    Some add ids behind a text instead, or as well. If the text is not found, its frame is taken to be empty.
    """
    starts = range(len(framed) - len(plain) + 1)
    found = (at for at in starts if list(framed[at : at + len(plain)]) == list(plain))
    return list(framed[: next(found, 0)])

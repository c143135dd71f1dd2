"""Incremental detokenizing: one id at a time, linear in the output, for any vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]

CONTEXT_IDS = 6
"""Ids decoded again for their context where pieces cannot simply be joined."""

MAX_HELD_IDS = 24
"""Ids that may wait for a character to become whole, before they are given out as they decode."""


class TableDetokenizer:
    """For vocabularies whose pieces are concatenated (byte-level, byte-fallback, SentencePiece, word pieces)."""

    __slots__ = ("_lookup", "_strip", "push")

    def __init__(self, lookup: Callable[[int], bytes], *, strip_first: bool) -> None:
        self._lookup = lookup
        self._strip = strip_first
        self.push = self._push if strip_first else lookup

    def _push(self, token_id: int) -> bytes:
        data = self._lookup(token_id)
        if self._strip and data:
            self._strip = False
            return data.removeprefix(b" ")
        return data


class WindowDetokenizer:
    """For any other: decodes a short window with and without the new ids and gives out the difference."""

    def __init__(self, decode: Decode, prefix: Sequence[int]) -> None:
        self._decode = decode
        self._ids = list(prefix[-CONTEXT_IDS:])
        self._read = len(self._ids)

    def push(self, token_id: int) -> bytes:
        self._ids.append(token_id)
        before = self._decode(self._ids[: self._read])
        after = self._decode(self._ids)
        waiting = len(self._ids) - self._read
        if len(after) < len(before) or (after.endswith("�") and waiting < MAX_HELD_IDS):
            return b""
        self._ids = self._ids[-CONTEXT_IDS:]
        self._read = len(self._ids)
        return after[len(before) :].encode("utf-8", "replace")

"""Incremental detokenizing: ids to bytes, bytes to whole characters, one id at a time, for any vocabulary.

Linear in the output. Never gives half a character, and gives the same text however the bytes are split.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]

CONTEXT_IDS = 6
"""Ids decoded again for context, if pieces cannot simply be joined."""

MAX_HELD_IDS = 24
"""How many ids may wait for a character to become whole before they are given out as they are."""


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
    """For all others: decodes a short window with and without the new ids and returns the difference."""

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


class Utf8Stream:
    """Holds back at most three bytes. Bytes that can never become a character turn into U+FFFD at once.

    What `feed` returns, joined, is `bytes.decode(errors="replace")` of everything fed, without the character that is
    still incomplete.
    """

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> str:
        if self._held:
            data = self._held + data
        elif data.isascii():
            return data.decode()
        cut = len(data) - incomplete_tail(data)
        self._held = data[cut:]
        return data[:cut].decode("utf-8", "replace")

    def end(self) -> str:
        """What is held back, since nothing completes it."""
        held, self._held = self._held, b""
        return held.decode("utf-8", "replace")


def incomplete_tail(data: bytes) -> int:
    """How many bytes at the end are the beginning of a character that may still be completed."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            return 0
        if byte >= 0xC0:
            return back if back < _length(byte) and _may_follow(data[-back:]) else 0
    return 0


def _length(lead: int) -> int:
    if 0xC2 <= lead <= 0xDF:
        return 2
    if 0xE0 <= lead <= 0xEF:
        return 3
    if 0xF0 <= lead <= 0xF4:
        return 4
    return 1


_SECOND_BYTE = {0xE0: (0xA0, 0xBF), 0xED: (0x80, 0x9F), 0xF0: (0x90, 0xBF), 0xF4: (0x80, 0x8F)}


def _may_follow(start: bytes) -> bool:
    """Overlong forms, surrogates and code points past U+10FFFF are already wrong at the second byte."""
    if len(start) < 2:
        return True
    low, high = _SECOND_BYTE.get(start[0], (0x80, 0xBF))
    return low <= start[1] <= high

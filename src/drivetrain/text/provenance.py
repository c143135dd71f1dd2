"""Text that knows which of its characters the chat template wrote itself; all others are the caller's.

The marks follow the text through what templates do with it. Only the operations below keep them: any other gives plain
text, which counts as the caller's. So an operation that was forgotten can lose a special token, but never forge one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self, SupportsIndex

OURS = b"\x01"
THEIRS = b"\x00"


class Traced(str):
    """`ours` has one byte per character. Compares and hashes like plain text."""

    __slots__ = ("ours",)
    ours: bytes

    def __new__(cls, text: str, ours: bytes) -> Self:
        traced = str.__new__(cls, text)
        traced.ours = ours
        return traced

    def __str__(self) -> str:
        return self

    def __add__(self, other: str) -> str:
        if not isinstance(other, str):
            return NotImplemented
        return Traced(str.__add__(self, other), self.ours + marks(other))

    def __radd__(self, other: str) -> str:
        if not isinstance(other, str):
            return NotImplemented
        return Traced(str.__add__(other, self), marks(other) + self.ours)

    def __mul__(self, times: SupportsIndex) -> str:
        return Traced(super().__mul__(times), self.ours * times)

    __rmul__ = __mul__

    def __getitem__(self, at: SupportsIndex | slice) -> str:
        ours = self.ours[at]
        return Traced(super().__getitem__(at), bytes((ours,)) if isinstance(ours, int) else ours)

    def __iter__(self) -> Iterator[str]:
        if OURS not in self.ours:
            return super().__iter__()
        shared = Written()  # so that a million equal characters are one object
        return (shared[char] if ours else char for char, ours in zip(super().__iter__(), self.ours, strict=True))

    def join(self, texts: Iterable[str], /) -> str:
        texts = list(texts)
        return Traced(super().join(texts), marks(self).join(map(marks, texts)))

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        if not old:
            return str.replace(self, old, new, count)
        kept = super().split(old, count)
        return Traced(str.join(new, kept), marks(new).join(self._marks_of(kept, len(old))))

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._pieces(super().split(sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._pieces(super().rsplit(sep, maxsplit), sep)

    def strip(self, chars: str | None = None, /) -> str:
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: str | None = None, /) -> str:
        return self[len(self) - len(super().lstrip(chars)) :]

    def rstrip(self, chars: str | None = None, /) -> str:
        return self[: len(super().rstrip(chars))]

    def removeprefix(self, prefix: str, /) -> str:
        return self[len(self) - len(super().removeprefix(prefix)) :]

    def removesuffix(self, suffix: str, /) -> str:
        return self[: len(super().removesuffix(suffix))]

    def capitalize(self) -> str:
        return self._recased(super().capitalize())

    def lower(self) -> str:
        return self._recased(super().lower())

    def title(self) -> str:
        return self._recased(super().title())

    def upper(self) -> str:
        return self._recased(super().upper())

    def _recased(self, text: str) -> str:
        """A character can become several, never none; so if the length is the same, each is where it was."""
        return Traced(text, self.ours) if len(text) == len(self) else text

    def _pieces(self, pieces: list[str], sep: str | None) -> list[str]:
        if sep is None:
            return pieces
        shared = Marked()  # so that a million equal pieces are one object
        return [shared[piece] for piece in zip(pieces, self._marks_of(pieces, len(sep)), strict=True)]

    def _marks_of(self, pieces: Sequence[str], apart: int) -> Iterator[bytes]:
        at = 0
        for piece in pieces:
            yield self.ours[at : at + len(piece)]
            at += len(piece) + apart


class Marked(dict[tuple[str, bytes], Traced]):
    """Text with its marks."""

    def __missing__(self, marked: tuple[str, bytes]) -> Traced:
        return self.setdefault(marked, Traced(*marked))


class Written(dict[str, Traced]):
    """Text from the template's source, marked as ours."""

    def __missing__(self, text: str) -> Traced:
        return self.setdefault(text, written(text))


def written(text: str) -> Traced:
    return Traced(text, OURS * len(text))


def traced(text: str) -> Traced:
    """Plain text is marked as the caller's."""
    return text if isinstance(text, Traced) else Traced(text, THEIRS * len(text))


def concat(texts: Iterable[str]) -> Traced:
    texts = list(texts)
    return Traced("".join(texts), b"".join(map(marks, texts)))


def marks(text: Any) -> bytes:
    return text.ours if isinstance(text, Traced) else THEIRS * len(text)

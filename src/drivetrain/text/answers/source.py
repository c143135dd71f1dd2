"""The text of an answer as it comes in, and the ways to read it: up to a marker, over spaces, by a scanner.

Readings are generators: each `yield` waits for more text, and each returns once it knows what it asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Protocol, TypeVar

from drivetrain.text.answers.search import Found, Search, Watch

T = TypeVar("T")
Reading = Generator[None, None, T]
Write = Callable[[str], None]

Keeps = Callable[[str], bool]
SPACES = " \t\r\n"


class Scanner(Protocol):
    """Reads one value, character by character."""

    @property
    def over(self) -> bool:
        """Whether the value has ended, well or not."""
        ...

    def feed(self, text: str, at: int) -> int:
        """Read `text` from `at` on; return where it stopped: at the end of the text, or of the value."""
        ...

    def take(self) -> str:
        """What was read since the last time, as it is to be given out."""
        ...


class Source:
    """`text[at:]` is what was not read yet. Text that was read is let go when more is added."""

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.ended = False
        self._base = 0
        self._raw: list[str] | None = None

    @property
    def position(self) -> int:
        """From the start of the answer."""
        return self._base + self.at

    def add(self, piece: str) -> None:
        self._base += self.at
        self.text = self.text[self.at :] + piece if self.at < len(self.text) else piece
        self.at = 0

    def record(self) -> None:
        """Keep what is read from here on, for `recorded`."""
        self._raw = []

    def recorded(self) -> str:
        raw = "".join(self._raw or ())
        self._raw = None
        return raw

    def mark(self) -> int:
        """A place in what is recorded, for `go_back`."""
        return len(self._raw or ())

    def go_back(self, mark: int) -> None:
        """All that was read since then is to be read again."""
        assert self._raw is not None
        unread = "".join(self._raw[mark:])
        del self._raw[mark:]
        if len(unread) > self.at:
            self._base = self.position - len(unread)
            self.text, self.at = unread + self.text[self.at :], 0
        else:
            self.at -= len(unread)

    def slice(self, start: int, end: int) -> str:
        """By positions from the start of the answer."""
        return self.text[start - self._base : end - self._base]

    def advance(self, to: int) -> str:
        """Read up to an index of `text`."""
        piece = self.text[self.at : to]
        self.at = to
        if self._raw is not None and piece:
            self._raw.append(piece)
        return piece

    def find(
        self,
        watch: Watch,
        write: Write,
        *,
        at_start: bool = False,
        no_empty: bool = False,
        keeps: Keeps = lambda half: True,
    ) -> Reading[Found | None]:
        """Give out text up to the first marker, and stop before it; None if the answer ends first. What could have
        become a marker, and now is half of one, is given out then if `keeps` says so.
        """
        search = Search(watch, self.position, at_start=at_start, no_empty=no_empty)
        while True:
            found = search.feed(self.text, self._base)
            upto = search.hold
            if found is None and self.ended:
                if upto < len(self.text) + self._base and keeps(self.text[upto - self._base :]):
                    upto = len(self.text) + self._base
                found = search.finish()
            write(self.advance((upto if found is None else found.start) - self._base))
            if found is not None:
                return found
            if self.ended:
                self.advance(len(self.text))
                return None
            yield

    def enter(self, found: Found) -> str:
        """Read the marker itself."""
        return self.advance(found.end - self._base)

    def peek(self) -> Reading[str]:
        """The next character; empty at the end of the answer."""
        while self.at >= len(self.text):
            if self.ended:
                return ""
            yield
        return self.text[self.at]

    def skip(self, chars: str = SPACES) -> Reading[str]:
        """Pass over these characters; the next one is returned as by `peek`."""
        while (char := (yield from self.peek())) and char in chars:
            to = self.at
            while to < len(self.text) and self.text[to] in chars:
                to += 1
            self.advance(to)
        return char

    def accept(self, literals: Sequence[str], *, after_spaces: bool = False) -> Reading[str | None]:
        """Read one of these if it comes next. Otherwise nothing is read, spaces before it neither; but if the answer
        ends in half of one, that half is."""
        offset = 0
        while True:
            at = self.at + offset
            if after_spaces:
                while at < len(self.text) and self.text[at] in SPACES:
                    at += 1
                offset = at - self.at
            fitting = [literal for literal in literals if self.text.startswith(literal, at)]
            rest = self.text[at:] if len(self.text) - at < max(map(len, literals), default=0) else None
            may_grow = rest is not None and any(len(lit) > len(rest) and lit.startswith(rest) for lit in literals)
            if may_grow and not self.ended:
                yield
                continue
            if not fitting:
                if may_grow and rest:
                    self.advance(len(self.text))
                return None
            longest = max(fitting, key=len)
            self.advance(at + len(longest))
            return longest

    def scan(self, scanner: Scanner, write: Write) -> Reading[None]:
        """Read one value, or what there is of it, and give it out as it comes."""
        while not scanner.over:
            if self.at >= len(self.text):
                if self.ended:
                    return
                yield
                continue
            self.advance(scanner.feed(self.text, self.at))
            write(scanner.take())

"""Reads one value as a model writes it, strictly, and gives out JSON text: JSON itself, Python's literals, Gemma's.

JSON is given out as it stands. A scanner never looks back, and its stack is its own, so no depth of nesting can hurt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from drivetrain.text.answers.source import SPACES
from drivetrain.text.answers.strings import Escapes, StringScanner, quoted

MAX_DEPTH = 200
"""Deeper values are malformed: most JSON readers would fail on them."""

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORD = re.compile(r"[A-Za-z0-9_.+-]+")
_KEY = re.compile(r"[^\t\r\n:{}\[\],\"'\ud800-\udfff]+")
MAX_WORD = 4000


@dataclass(frozen=True, slots=True)
class Dialect:
    """How values are written. `quotes` are the delimiters of strings; `words` become JSON's."""

    quotes: tuple[str, ...] = ('"',)
    escapes: Escapes = Escapes.JSON
    words: Mapping[str, str] = field(
        default_factory=lambda: MappingProxyType({"true": "true", "false": "false", "null": "null"})
    )
    bare_keys: bool = False
    trailing_commas: bool = False


JSON = Dialect()
PYTHON = Dialect(
    quotes=('"', "'"),
    escapes=Escapes.PYTHON,
    words=MappingProxyType({**JSON.words, "True": "true", "False": "false", "None": "null"}),
    trailing_commas=True,
)
GEMMA = Dialect(quotes=('<|"|>', '"'), escapes=Escapes.NONE, bare_keys=True)


class _Want(Enum):
    VALUE = "value"
    FIRST_VALUE = "first value"
    KEY = "key"
    FIRST_KEY = "first key"
    COLON = "colon"
    COMMA = "comma"


class ValueScanner:
    """Feed it text until it is `over`. `take` returns the JSON that was read since the last time."""

    def __init__(self, dialect: Dialect = JSON) -> None:
        self.wrong = False
        self.whole = False
        self._dialect = dialect
        self._out: list[str] = []
        self._stack: list[str] = []
        self._want = _Want.VALUE
        self._string: StringScanner | None = None
        self._is_key = False
        self._word: list[str] = []
        self._opening = ""

    @property
    def over(self) -> bool:
        return self.wrong or self.whole

    def take(self) -> str:
        text = "".join(self._out)
        self._out.clear()
        return text

    def finish(self) -> None:
        """No more text comes: a number or a word may end here."""
        if self._word and not self.over:
            self._end_word()
        self.wrong = not self.whole

    def feed(self, text: str, at: int) -> int:
        while at < len(text) and not self.over:
            if self._string is not None:
                at = self._string.feed(text, at)
                self._out.append(self._string.take())
                if self._string.over:
                    self._end_string(self._string)
            elif self._word:
                at = self._feed_word(text, at)
            else:
                at = self._feed_structure(text, at)
        return at

    def _feed_structure(self, text: str, at: int) -> int:
        char = text[at]
        if self._opening or any(quote.startswith(char) for quote in self._dialect.quotes):
            self._feed_quote(char)
            return at + 1
        if char in SPACES:
            self._out.append(char)
            return at + 1
        want = self._want
        if want is _Want.COLON and char == ":":
            self._out.append(char)
            self._want = _Want.VALUE
        elif want is _Want.COMMA and char == ",":
            self._comma()
        elif char in "}]":
            self._close(char)
        elif want in (_Want.VALUE, _Want.FIRST_VALUE) and char in "{[":
            self._flush_comma()
            self._open(char)
        elif want in (_Want.VALUE, _Want.FIRST_VALUE) and _WORD.match(char):
            self._flush_comma()
            return self._feed_word(text, at)
        elif want in (_Want.KEY, _Want.FIRST_KEY) and self._dialect.bare_keys and _KEY.match(char):
            self._flush_comma()
            self._is_key = True
            return self._feed_word(text, at)
        else:
            self.wrong = True
            return at
        return at + 1

    def _feed_quote(self, char: str) -> None:
        """A delimiter may be several characters long."""
        self._opening += char
        if self._opening in self._dialect.quotes:
            if self._want in (_Want.COLON, _Want.COMMA):
                self.wrong = True
                return
            self._flush_comma()
            self._is_key = self._want in (_Want.KEY, _Want.FIRST_KEY)
            self._string = StringScanner(self._opening, self._dialect.escapes)
            self._out.append('"')
            self._opening = ""
        elif not any(quote.startswith(self._opening) for quote in self._dialect.quotes):
            self.wrong = True

    def _end_string(self, string: StringScanner) -> None:
        self._string = None
        if string.wrong:
            self.wrong = True
            return
        self._out.append('"')
        self._end_value(is_key=self._is_key)

    def _feed_word(self, text: str, at: int) -> int:
        found = (_KEY if self._is_key else _WORD).match(text, at)
        if found is None:
            self._end_word()
            return at
        self._word.append(found.group())
        if sum(map(len, self._word)) > MAX_WORD:
            self.wrong = True
        return found.end()

    def _end_word(self) -> None:
        word = "".join(self._word)
        self._word.clear()
        if self._is_key:
            self._out.append(quoted(word.rstrip()))
        elif word in self._dialect.words:
            self._out.append(self._dialect.words[word])
        elif _NUMBER.fullmatch(word):
            self._out.append(word)
        else:
            self.wrong = True
            return
        self._end_value(is_key=self._is_key)
        self._is_key = False

    def _end_value(self, *, is_key: bool) -> None:
        if is_key:
            self._want = _Want.COLON
        elif self._stack:
            self._want = _Want.COMMA
        else:
            self.whole = True
        self._is_key = False

    def _open(self, char: str) -> None:
        if len(self._stack) >= MAX_DEPTH:
            self.wrong = True
            return
        self._stack.append(char)
        self._out.append(char)
        self._want = _Want.FIRST_KEY if char == "{" else _Want.FIRST_VALUE

    def _comma(self) -> None:
        self._want = _Want.KEY if self._stack[-1] == "{" else _Want.VALUE
        if not self._dialect.trailing_commas:
            self._out.append(",")

    def _flush_comma(self) -> None:
        """Where a comma may come before the end, it is given out with the item that follows it."""
        if self._dialect.trailing_commas and self._stack and self._want in (_Want.KEY, _Want.VALUE):
            in_list = self._stack[-1] == "["
            if in_list or self._want is _Want.KEY:
                self._out.append(",")

    def _close(self, char: str) -> None:
        opened = "{" if char == "}" else "["
        ends = {_Want.COMMA, _Want.FIRST_KEY if opened == "{" else _Want.FIRST_VALUE}
        if self._dialect.trailing_commas:
            ends.add(_Want.KEY)
            if opened == "[":
                ends.add(_Want.VALUE)
        if not self._stack or self._stack[-1] != opened or self._want not in ends:
            self.wrong = True
            return
        self._stack.pop()
        self._out.append(char)
        self._end_value(is_key=False)

"""Reads the inside of a string up to its closing delimiter, and gives out the inside of a JSON string."""

from __future__ import annotations

import json
import re
from enum import Enum
from typing import Any

from drivetrain.text.stops import StopMatcher

_SURROGATE = re.compile("[\ud800-\udfff]")
_PLAIN = re.compile(r'[^"\\\x00-\x1f\ud800-\udfff]+')
_RUN = re.compile("[^\ud800-\udfff]+")
_HEX = frozenset("0123456789abcdefABCDEF")
_JSON_ESCAPES = frozenset('"\\/bfnrt')
_PYTHON_ESCAPES = {
    "\n": "", "\\": "\\", "'": "'", '"': '"', "0": "\0",
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
}  # fmt: skip


def quoted(text: str) -> str:
    """As a JSON string. Half a surrogate pair, which UTF-8 cannot carry, is written as its escape."""
    return _escape_surrogates(json.dumps(text, ensure_ascii=False))


def json_text(value: Any) -> str | None:
    """None for what JSON cannot say, such as infinity."""
    try:
        return _escape_surrogates(json.dumps(value, ensure_ascii=False, allow_nan=False))
    except (ValueError, RecursionError):
        return None


def is_utf8(text: str) -> bool:
    """Whether UTF-8 can carry it: an escape of JSON may be half a surrogate pair."""
    return _SURROGATE.search(text) is None


def _escape_surrogates(json_text: str) -> str:
    return _SURROGATE.sub(lambda found: f"\\u{ord(found.group()):04x}", json_text)


class Escapes(Enum):
    JSON = "json"
    PYTHON = "python"
    NONE = "none"


class StringScanner:
    """The inside of a string up to its closing delimiter, as the inside of a JSON string."""

    def __init__(self, close: str, escapes: Escapes) -> None:
        self.wrong = False
        self.whole = False
        self._out: list[str] = []
        self._escapes = escapes
        self._close = close
        self._matcher = StopMatcher([close]) if escapes is Escapes.NONE else None
        self._state = StopMatcher.ROOT
        self._escape = ""

    @property
    def over(self) -> bool:
        return self.wrong or self.whole

    def take(self) -> str:
        text = "".join(self._out)
        self._out.clear()
        return text

    def feed(self, text: str, at: int) -> int:
        while at < len(text) and not self.over:
            if self._matcher is not None:
                at = self._feed_raw(self._matcher, text, at)
            elif self._escape:
                at = self._feed_escape(text[at], at)
            elif found := _PLAIN.match(text, at):
                at = self._feed_plain(found.group(), at)
            else:
                at = self._feed_mark(text[at], at)
        return at

    def _feed_plain(self, run: str, at: int) -> int:
        upto = run.find(self._close)
        self._out.append(run if upto < 0 else run[:upto])
        self.whole = upto >= 0
        return at + (len(run) if upto < 0 else upto + 1)

    def _feed_mark(self, char: str, at: int) -> int:
        if char == self._close:
            self.whole = True
        elif char == "\\":
            self._escape = char
        elif char == '"':
            self._out.append('\\"')
        elif self._escapes is Escapes.PYTHON and char not in "\r\n" and char < " ":
            self._out.append(quoted(char)[1:-1])
        else:
            self.wrong = True
            return at
        return at + 1

    def _feed_raw(self, matcher: StopMatcher[str], text: str, at: int) -> int:
        """Without escapes: everything up to the delimiter, of which a part may have been read."""
        depth = matcher.depth(self._state)
        if depth == 0 and (found := _RUN.match(text, at)):
            upto = found.group().find(self._close[0])
            run = found.group() if upto < 0 else found.group()[:upto]
            if run:
                self._out.append(quoted(run)[1:-1])
                return at + len(run)
        self._state = matcher.step(self._state, text[at])
        self.whole = matcher.match(self._state) is not None
        read = self._close[:depth] + text[at]
        certain = read[: len(read) - matcher.depth(self._state)]
        if _SURROGATE.search(certain):
            self.wrong = True
            return at
        self._out.append(quoted(certain)[1:-1])
        return at + 1

    def _feed_escape(self, char: str, at: int) -> int:
        """`_escape` is what was read of an escape, from its backslash on."""
        self._escape += char
        kind, digits = self._escape[1], self._escape[2:]
        python = self._escapes is Escapes.PYTHON
        width = {"u": 4, "x": 2, "U": 8}.get(kind, 0) if python or kind == "u" else 0
        if width:
            if digits and digits[-1] not in _HEX:
                self.wrong = True
                return at
            if len(digits) < width:
                return at + 1
            code = int(digits, 16)
            self.wrong = code > 0x10FFFF
            self._end_escape("" if self.wrong else self._escape if not python else quoted(chr(code))[1:-1])
        elif python:
            self._end_escape(quoted(_PYTHON_ESCAPES.get(kind, self._escape))[1:-1])
        elif kind in _JSON_ESCAPES:
            self._end_escape(self._escape)
        else:
            self.wrong = True
            return at
        return at + 1

    def _end_escape(self, text: str) -> None:
        self._out.append(text)
        self._escape = ""

"""Reads regular expressions: the part of Python's syntax that can be matched in time linear in the text.

That is what `response_template`s use: literals, classes, groups, alternatives, greedy and lazy repeats, `^`, `$`, and a
lookahead at the end. Backreferences, lookbehinds and the like are refused. A dot matches a line break too.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from drivetrain.core.errors import InvalidRequest

MAX_REPEAT = 1000
MAX_LENGTH = 2000
MAX_DEPTH = 50
"""A template comes with the weights, so its patterns are not trusted to be small."""

START, END = "start", "end"
"""Positions in the text."""

Test = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Literal:
    char: str


@dataclass(frozen=True, slots=True)
class Class:
    test: Test


@dataclass(frozen=True, slots=True)
class Position:
    kind: str


@dataclass(frozen=True, slots=True)
class Group:
    body: Node
    name: str | None


@dataclass(frozen=True, slots=True)
class Items:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Either:
    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    body: Node
    low: int
    high: int | None
    lazy: bool


@dataclass(frozen=True, slots=True)
class Ahead:
    body: Node


Node = Literal | Class | Position | Group | Items | Either | Repeat | Ahead


class PatternSyntax:
    """Reads one pattern, left to right. What cannot be matched in linear time is an `InvalidRequest`."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._depth = 0
        self.names: list[str] = []

    def parse(self) -> Node:
        if len(self._pattern) > MAX_LENGTH:
            raise self._refuse("it is too long")
        if self._pattern.startswith("(?s)"):
            self._at = 4
        node = self._either()
        if self._at < len(self._pattern):
            raise self._refuse("unbalanced parenthesis")
        return node

    def _refuse(self, why: str) -> InvalidRequest:
        return InvalidRequest(f"the pattern {self._pattern[:200]!r} cannot be used: {why}", param="form")

    def _peek(self, text: str) -> bool:
        return self._pattern.startswith(text, self._at)

    def _accept(self, text: str) -> bool:
        if not self._peek(text):
            return False
        self._at += len(text)
        return True

    def _next(self) -> str:
        if self._at >= len(self._pattern):
            raise self._refuse("it ends too early")
        self._at += 1
        return self._pattern[self._at - 1]

    def _either(self) -> Node:
        options = [self._sequence()]
        while self._accept("|"):
            options.append(self._sequence())
        return options[0] if len(options) == 1 else Either(tuple(options))

    def _sequence(self) -> Node:
        items: list[Node] = []
        while self._at < len(self._pattern) and not self._peek("|") and not self._peek(")"):
            items.append(self._repeated(self._atom()))
        return Items(tuple(items))

    def _repeated(self, body: Node) -> Node:
        counted = re.compile(r"\{(\d*)(?:(,)(\d*))?\}").match(self._pattern, self._at)
        if self._accept("*"):
            low, high = 0, None
        elif self._accept("+"):
            low, high = 1, None
        elif self._accept("?"):
            low, high = 0, 1
        elif counted and counted.group() not in ("{}", "{,}"):
            self._at = counted.end()
            low = int(counted[1] or 0)
            high = low if counted[2] is None else int(counted[3]) if counted[3] else None
        else:
            return body
        if low > MAX_REPEAT or (high is not None and not low <= high <= MAX_REPEAT):
            raise self._refuse("a repeat is too long")
        if self._peek("+"):
            raise self._refuse("possessive repeats are not supported")
        repeat = Repeat(body, low, high, self._accept("?"))
        if self._pattern[self._at : self._at + 1] in ("*", "+", "?"):
            raise self._refuse("a repeat is repeated")
        return repeat

    def _atom(self) -> Node:
        char = self._next()
        match char:
            case "(":
                return self._group()
            case "[":
                return Class(self._class())
            case ".":
                return Class(lambda _: True)
            case "^":
                return Position(START)
            case "$":
                return Position(END)
            case "\\":
                return self._escape()
            case "*" | "+" | "?":
                raise self._refuse("nothing to repeat")
        return Literal(char)

    def _group(self) -> Node:
        name = None
        if self._accept("?=") or self._accept("?:") or not self._peek("?"):
            ahead = self._pattern.startswith("?=", self._at - 2)
        elif found := re.compile(r"\?P?<(\w+)>").match(self._pattern, self._at):
            self._at, ahead, name = found.end(), False, found[1]
            self.names.append(name)
        else:
            raise self._refuse("this kind of group is not supported")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._refuse("its groups are nested too deeply")
        body = self._either()
        self._depth -= 1
        if not self._accept(")"):
            raise self._refuse("unbalanced parenthesis")
        return Ahead(body) if ahead else Group(body, name)

    def _escape(self) -> Node:
        char = self._next()
        if char == "A":
            return Position(START)
        if char in "Zz":
            return Position(END)
        if char in _CLASSES:
            return Class(_CLASSES[char])
        return Literal(self._escaped(char))

    def _escaped(self, char: str) -> str:
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char in "xu":
            width = 2 if char == "x" else 4
            digits = "".join(self._next() for _ in range(width))
            if not re.fullmatch(r"[0-9A-Fa-f]+", digits):
                raise self._refuse(f"\\{char}{digits} is not a character")
            return chr(int(digits, 16))
        if char.isalnum():
            raise self._refuse(f"\\{char} is not supported")
        return char

    def _class(self) -> Test:
        negated = self._accept("^")
        chars: set[str] = set()
        ranges: list[tuple[str, str]] = []
        tests: list[Test] = []
        first = True
        while first or not self._accept("]"):
            first = False
            low = self._member(tests)
            if low is None:
                continue
            if self._peek("-") and not self._peek("-]"):
                self._at += 1
                high = self._member(tests)
                if high is None or high < low:
                    raise self._refuse("a range in a class is wrong")
                ranges.append((low, high))
            else:
                chars.add(low)

        def test(char: str) -> bool:
            found = char in chars or any(a <= char <= b for a, b in ranges) or any(t(char) for t in tests)
            return found != negated

        return test

    def _member(self, tests: list[Test]) -> str | None:
        char = self._next()
        if char != "\\":
            return char
        char = self._next()
        if char in _CLASSES:
            tests.append(_CLASSES[char])
            return None
        return self._escaped(char)


def is_word(char: str) -> bool:
    return char.isalnum() or unicodedata.category(char) in ("Mn", "Mc", "Me", "Pc")


def is_space(char: str) -> bool:
    return char.isspace() and not "\x1c" <= char <= "\x1f"


_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}
_CLASSES: dict[str, Test] = {
    "w": is_word,
    "W": lambda char: not is_word(char),
    "s": is_space,
    "S": lambda char: not is_space(char),
    "d": str.isdecimal,
    "D": lambda char: not char.isdecimal(),
}

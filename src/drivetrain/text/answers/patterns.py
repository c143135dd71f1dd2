"""Compiles regular expressions into programs that `search.py` runs in time linear in the text."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from drivetrain.core.errors import InvalidRequest
from drivetrain.text.answers.pattern_syntax import (
    START,
    Ahead,
    Class,
    Either,
    Group,
    Items,
    Literal,
    Node,
    PatternSyntax,
    Position,
    Repeat,
    Test,
)

MAX_STEPS = 1000
"""The size of a program: what a character costs at most is proportional to it."""

MATCH = -1
LOOK = "="
"""Noted where a lookahead begins: there the match ends."""

Path = tuple[int, tuple[str, ...], bool]
"""The next instruction, the positions noted on the way to it, and whether that way exists at the start only."""


class Pattern:
    """A compiled pattern. It never changes, so all answers share it.

    `tests[i]` says whether instruction `i` takes a character (None: it waits for the end of the text). `paths[i]` are
    the ways on from there, the preferred ones first; `first` are those from the beginning.
    """

    def __init__(self, source: str, symbols: Mapping[str, str]) -> None:
        syntax = PatternSyntax(source)
        self._symbols = symbols
        self._firsts = {symbol: spelling[0] for spelling, symbol in symbols.items()}
        self.source = source
        self._builds = 0
        self.tests: list[Test | None] = []
        self._steps: list[tuple[int, ...]] = []
        self._notes: dict[int, str] = {}
        self._starts: set[int] = set()
        self._chars: set[int] = set()
        self._literals: dict[int, str] = {}
        entry = self._build(syntax.parse(), MATCH, tail=True)
        self.names = tuple(syntax.names)
        self.first = self._ways(entry)
        self.paths = [self._ways(self._steps[i][0]) if i in self._chars else () for i in range(len(self._steps))]
        self.start_chars = self._start_chars()

    def _start_chars(self) -> frozenset[str] | None:
        """The characters that a match can begin with, except at the start; None if it may be any, or none at all."""
        firsts = [to for to, _, at_start in self.first if not at_start]
        if any(to not in self._literals for to in firsts):
            return None
        return frozenset(self._literals[to] for to in firsts)

    def _refuse(self, why: str) -> InvalidRequest:
        return InvalidRequest(f"the pattern {self.source[:200]!r} cannot be used: {why}", param="form")

    def _add(self, *steps: int) -> int:
        if len(self._steps) >= MAX_STEPS:
            raise self._refuse("it is too large")
        self._steps.append(steps)
        self.tests.append(None)
        return len(self._steps) - 1

    def _build(self, node: Node, after: int, *, tail: bool) -> int:
        """Append the instructions of a node that goes on to `after`; return its first one."""
        self._builds += 1
        if self._builds > 10 * MAX_STEPS:
            raise self._refuse("it is too large")
        match node:
            case Literal(char):
                return self._literal(char, after)
            case Class(test):
                at = self._add(after)
                self._chars.add(at)
                self.tests[at] = self._by_spelling(test)
                return at
            case Position(kind):
                at = self._add(after)
                if kind == START:
                    self._starts.add(at)
                else:
                    self._chars.add(at)
                return at
            case Group(body, name):
                if name is None:
                    return self._build(body, after, tail=tail)
                inner = self._build(body, self._note(f">{name}", after), tail=tail)
                return self._note(f"<{name}", inner)
            case Ahead(body):
                if not tail:
                    raise self._refuse("a lookahead must stand at its end")
                return self._note(LOOK, self._build(body, after, tail=True))
            case Items(items):
                parts = self._with_symbols(items)
                for i, part in reversed(list(enumerate(parts))):
                    after = self._build(part, after, tail=tail and i == len(parts) - 1)
                return after
            case Either(options):
                return self._add(*[self._build(option, after, tail=tail) for option in options])
            case Repeat():
                return self._repeat(node, after)

    def _literal(self, char: str, after: int) -> int:
        at = self._add(after)
        self._chars.add(at)
        self._literals[at] = char
        self.tests[at] = char.__eq__
        return at

    def _repeat(self, node: Repeat, after: int) -> int:
        if node.high is None:
            loop = self._add()
            body = self._build(node.body, loop, tail=False)
            self._steps[loop] = (after, body) if node.lazy else (body, after)
            entry = loop
        else:
            entry = after
            for _ in range(node.high - node.low):
                body = self._build(node.body, entry, tail=False)
                entry = self._add(after, body) if node.lazy else self._add(body, after)
        for _ in range(node.low):
            entry = self._build(node.body, entry, tail=False)
        return entry

    def _note(self, note: str, after: int) -> int:
        at = self._add(after)
        self._notes[at] = note
        return at

    def _with_symbols(self, items: tuple[Node, ...]) -> list[Node]:
        """Where literals spell a special token, its symbol stands in their place."""
        if not self._symbols:
            return list(items)
        text = "".join(item.char if isinstance(item, Literal) else "\0" for item in items)
        parts: list[Node] = []
        at = 0
        while at < len(items):
            spelled = max((s for s in self._symbols if text.startswith(s, at)), key=len, default=None)
            parts.append(items[at] if spelled is None else Literal(self._symbols[spelled]))
            at += 1 if spelled is None else len(spelled)
        return parts

    def _by_spelling(self, test: Test) -> Test:
        """A class takes a special token if it takes the first character of its name."""
        firsts = self._firsts
        return (lambda char: test(firsts.get(char, char))) if firsts else test

    def _ways(self, entry: int) -> tuple[Path, ...]:
        ways: list[Path] = []
        seen: set[tuple[int, bool]] = set()
        stack: list[Path] = [(entry, (), False)]
        while stack:
            at, notes, at_start = stack.pop()
            if (at, at_start) in seen:
                continue
            seen.add((at, at_start))
            if at == MATCH or at in self._chars:
                ways.append((at, notes, at_start))
                continue
            noted = (*notes, self._notes[at]) if at in self._notes else notes
            stack += [(to, noted, at_start or at in self._starts) for to in reversed(self._steps[at])]
        return tuple(ways)


@lru_cache(maxsize=256)
def compiled(source: str) -> Pattern:
    """For text. A tokenizer's special tokens make a pattern of their own."""
    return Pattern(source, {})

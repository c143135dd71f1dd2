"""A Lark grammar without recursion as one regex.

So a text can be held to it inside a JSON string, where quotes and line breaks are written as escapes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from drivetrain.core.errors import InvalidRequest
from drivetrain.text.grammar.brackets import bar_outside

MAX_CHARS = 20_000
"""Of the regex: rules that stand for two of the one before double with each."""

MAX_SOURCE_CHARS = 50_000
MAX_DEPTH = 50
"""Of brackets and rules in rules."""

_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\r]+|//[^\n]*|\#[^\n]*)
    |(?P<line>\n\s*)
    |(?P<string>"(?:[^"\\\n]|\\.)*"i?)
    |(?P<regex>/(?!/)(?:[^/\\\n]|\\.)+/[a-z]*)
    |(?P<name>[!?]?[A-Za-z_][A-Za-z0-9_]*)
    |(?P<directive>%[a-z]+)
    |(?P<repeat>~\s*[0-9]+(?:\s*\.\.\s*[0-9]+)?)
    |(?P<mark>\.\.|->|[:|()\[\]?*+.]|[0-9]+)
    """,
    re.VERBOSE,
)

_COMMON = {
    "CR": r"\r", "LF": r"\n", "NEWLINE": r"(?:\r?\n)+", "WS": r"[ \t\f\r\n]+", "WS_INLINE": r"[ \t]+",
    "DIGIT": "[0-9]", "HEXDIGIT": "[0-9a-fA-F]", "INT": "[0-9]+", "SIGNED_INT": r"[+\-]?[0-9]+",
    "LETTER": "[A-Za-z]", "LCASE_LETTER": "[a-z]", "UCASE_LETTER": "[A-Z]", "WORD": "[A-Za-z]+",
    "CNAME": "[A-Za-z_][A-Za-z0-9_]*", "ESCAPED_STRING": r'"(?:[^"\\\n]|\\.)*"',
}  # fmt: skip
"""Terminals that a grammar may import from Lark's own."""

_SPECIAL = frozenset("\\.+*?()|[]{}^$-&~#")
_ESCAPES = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}

_Tokens = list[tuple[str, str]]


def regex_of_lark(source: str) -> str:
    """Raises `InvalidRequest` for what cannot be read, and for rules that refer to themselves."""
    if len(source) > MAX_SOURCE_CHARS:
        raise _refused(f"it has more than {MAX_SOURCE_CHARS} characters")
    rules: dict[str, _Tokens] = {}
    for name, body in _rules(source):
        if name in rules:
            raise _refused(f"the rule {name} is there twice")
        rules[name] = body
    if "start" not in rules:
        raise _refused("there is no rule start")
    return _Writer(rules).rule("start")


def _refused(why: str) -> InvalidRequest:
    return InvalidRequest(f"the grammar cannot be honoured: {why}")


def _rules(source: str) -> Iterator[tuple[str, _Tokens]]:
    """Each rule with what stands behind its colon. One goes on in lines that begin with a bar."""
    name, body = "", _Tokens()
    for line in _lines(source):
        kind, text = line[0]
        if kind == "directive":
            yield from _imported(line)
        elif text == "|" and name:
            body += line
        else:
            if name:
                yield name, body
            told = [mark for _, mark in line[1:4]]
            has_priority = told[:1] == ["."] and told[1:2] != [] and told[1].isdigit()
            behind = told[2:] if has_priority else told
            if kind != "name" or behind[:1] != [":"]:
                raise _refused(f"{text[:40]!r} begins no rule")
            name, body = text.lstrip("!?"), line[4 if has_priority else 2 :]
    if name:
        yield name, body


def _lines(source: str) -> Iterator[_Tokens]:
    """Line breaks inside brackets part nothing."""
    line, depth, at = _Tokens(), 0, 0
    while at < len(source):
        found = _TOKEN.match(source, at)
        if found is None:
            raise _refused(f"{source[at : at + 20]!r} cannot be read")
        at, kind, text = found.end(), str(found.lastgroup), found.group()
        depth += (text in "([") - (text in ")]") if kind == "mark" else 0
        if kind == "line" and line and depth <= 0:
            yield line
            line = []
        elif kind not in ("line", "space"):
            line.append((kind, text))
    if line:
        yield line


def _imported(line: _Tokens) -> Iterator[tuple[str, _Tokens]]:
    """Of `%import common.NAME` or `%import common.NAME -> OTHER`."""
    texts = [text for _, text in line]
    if texts[0] != "%import" or texts[1:3] != ["common", "."] or len(texts) not in (4, 6) or texts[3] not in _COMMON:
        raise _refused(f"{' '.join(texts)[:60]} is not supported where the text stands in a call")
    yield texts[-1], [("regex", f"/{_COMMON[texts[3]]}/")]


@dataclass(slots=True)
class _Reading:
    """What is left of one rule."""

    tokens: _Tokens
    at: int = 0

    def peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def take(self) -> tuple[str, str]:
        if self.at >= len(self.tokens):
            raise _refused("a rule ends too early")
        self.at += 1
        return self.tokens[self.at - 1]


class _Writer:
    def __init__(self, rules: dict[str, _Tokens]) -> None:
        self._rules = rules
        self._written: dict[str, str] = {}
        self._open: list[str] = []
        self._depth = 0

    def rule(self, name: str) -> str:
        if name in self._open:
            raise _refused(f"the rule {name} refers to itself, which cannot be held inside a call")
        if name not in self._rules:
            raise _refused(f"the rule {name} does not exist")
        if name not in self._written:
            self._open.append(name)
            reading = _Reading(self._rules[name])
            self._written[name] = self._either(reading)
            if reading.peek():
                raise _refused(f"{reading.peek()!r} in the rule {name} cannot be read")
            self._open.pop()
        return self._written[name]

    def _either(self, reading: _Reading) -> str:
        options = [self._sequence(reading)]
        size = len(options[0])
        while reading.peek() == "|":
            reading.take()
            options.append(self._sequence(reading))
            size = _bounded(size + len(options[-1]))
        return options[0] if len(options) == 1 else f"(?:{'|'.join(options)})"

    def _sequence(self, reading: _Reading) -> str:
        items: list[str] = []
        size = 0
        while reading.peek() not in ("", "|", ")", "]", "->"):
            items.append(self._repeated(reading))
            size = _bounded(size + len(items[-1]))
        if reading.peek() == "->":
            reading.take()
            reading.take()
        return "".join(items)

    def _repeated(self, reading: _Reading) -> str:
        item, follows = self._item(reading), reading.peek()
        if follows in ("?", "*", "+"):
            reading.take()
            return f"(?:{item}){follows}"
        if follows.startswith("~"):
            least, _, most = reading.take()[1][1:].replace(" ", "").partition("..")
            return f"(?:{item}){{{least}{f',{most}' if most else ''}}}"
        return item

    def _item(self, reading: _Reading) -> str:
        if self._depth >= MAX_DEPTH:
            raise _refused(f"it is nested more than {MAX_DEPTH} deep")
        self._depth += 1
        item = self._read(reading)
        self._depth -= 1
        return item

    def _read(self, reading: _Reading) -> str:
        kind, text = reading.take()
        if kind == "string":
            return self._string(text, reading)
        if kind == "regex":
            return _embedded(text)
        if kind == "name":
            return f"(?:{self.rule(text)})"
        if text in ("(", "["):
            inside = self._either(reading)
            if reading.take()[1] != {"(": ")", "[": "]"}[text]:
                raise _refused("a bracket is not closed")
            return f"(?:{inside}){'?' if text == '[' else ''}"
        raise _refused(f"{text!r} cannot be read here")

    def _string(self, text: str, reading: _Reading) -> str:
        """A text, or a range of characters."""
        value = _unquoted(text)
        if reading.peek() == "..":
            reading.take()
            last = _unquoted(reading.take()[1])
            if len(value) != 1 or len(last) != 1 or last < value:
                raise _refused("a range goes from one character to a later one")
            return f"[{_escaped(value)}-{_escaped(last)}]"
        return f"(?i:{_escaped(value)})" if text.endswith("i") else _escaped(value)


def _unquoted(text: str) -> str:
    body = text.removesuffix("i")
    try:
        return str(json.loads(body))
    except ValueError:
        raise _refused(f"the string {text[:40]} cannot be read") from None


def _escaped(text: str) -> str:
    return "".join(_ESCAPES.get(char, f"\\{char}" if char in _SPECIAL else char) for char in text)


def _embedded(text: str) -> str:
    """The regex between slashes, with the flags behind it."""
    body, _, flags = text[1:].rpartition("/")
    if set(flags) - set("ism"):
        raise _refused(f"the flags {flags} of a regex are not supported")
    if bar_outside(body) is None:
        raise _refused(f"the brackets of the regex {text[:40]} do not fit")
    kept = "".join(sorted(set(flags) & set("is")))
    return f"(?{kept}:{body.replace(chr(92) + '/', '/')})"


def _bounded(size: int) -> int:
    """Before anything of that size is put together."""
    if size > MAX_CHARS:
        raise _refused(f"written out, it has more than {MAX_CHARS} characters")
    return size

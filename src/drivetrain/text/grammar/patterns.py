"""What can be told of the patterns in a schema without compiling them: each answer is certain, or None."""

from __future__ import annotations

import re
from collections.abc import Iterable

from drivetrain.text.grammar.brackets import bar_outside
from drivetrain.text.grammar.documents import CannotRewrite

MAX_TEXT_CHARS = 100_000
"""Of the pattern for all texts but some."""

MAX_TRIED_CHARS = 200
MAX_LOOKING_CHARS, MAX_LOOKS = 500, 10
MAX_CLASS_CHARS = 5000

_LOOKS = re.compile(r"\(\?(?:[=!]|<[=!])")
_ESCAPE = re.compile(r"\\.", re.DOTALL)
_SIMPLE = re.compile(
    r"\^?(?:[A-Za-z0-9 _:;@%&=<>,'\"~/#.!*+?-]|\\[dw.\-/+*?()\[\]{}^$|]|\{[0-9]{1,2}\}"
    r"|\[(?:[A-Za-z0-9 _:;@%.-]|\\[dw.-])+\])*\$?"
)
"""Means the same everywhere, and has no brackets whose repetitions could be repeated."""

_ON_NOTHING = re.compile(r"(?:[^\\(]|\((?!\?)|\(\?:|\\[dwDW.\-/+*?()\[\]{}^$|])*")
_OTHERS = re.compile(r"\[\^((?:[^\\\]]|\\.)+)\]", re.DOTALL)
_CHAR = re.compile(r"\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.|[^\\]", re.DOTALL)
_RANGE = re.compile(r"([^\\])-([^\\])")
_ESCAPED = frozenset(('"', "\\\\", '\\"', "\\x22", "\\x5c", "\\x5C", "\\u0022", "\\u005c", "\\u005C"))
_COUNTED = re.compile(r"\{(\d+)")
_LITERAL = re.compile(r"(?:[A-Za-z0-9 _:;@%&=<>,'\"~/#!-]|\\[.\-/+*?()\[\]{}^$|])+")


def matches(pattern: str, text: str) -> bool | None:
    """Whether it is found in the text; None if that is not certain, or would take long."""
    if len(pattern) > MAX_TRIED_CHARS or len(text) > MAX_TRIED_CHARS or "\n" in text or not text.isascii():
        return None
    if text:
        told = _SIMPLE.fullmatch(pattern) is not None and len(re.findall("[*+?]", pattern)) <= 3
    else:
        told = _ON_NOTHING.fullmatch(pattern) is not None and all(int(n) < 10 for n in _COUNTED.findall(pattern)[:3])
        told = told and len(_COUNTED.findall(pattern)) <= 3
    try:
        return re.search(pattern, text, re.ASCII) is not None if told else None
    except re.error:
        return None


def never_both(one: str, other: str) -> bool:
    """True only if no text has both, as they tell how it begins."""
    first, second = _beginning(one), _beginning(other)
    return not first.startswith(second) and not second.startswith(first)


def _beginning(pattern: str) -> str:
    if not pattern.startswith("^") or bar_outside(pattern[1:]) is not False:
        return ""
    found = _LITERAL.match(pattern, 1)
    if found is None:
        return ""
    text = re.sub(r"\\(.)", r"\1", found[0])
    return text[:-1] if pattern[found.end() : found.end() + 1] in ("*", "?", "{") else text


def excludes_escaped(pattern: str) -> bool:
    """Whether a class in it leaves out a quote or a backslash: the library lets them pass all the same, as escapes."""
    if len(pattern) > MAX_CLASS_CHARS:
        return "[^" in pattern and ('"' in pattern or "\\\\" in pattern)
    for found in _OTHERS.finditer(pattern):
        chars = _CHAR.findall(found[1])
        if any(one in _ESCAPED for one in chars):
            return True
        if any(low <= char <= high for low, high in _RANGE.findall(found[1]) for char in '"\\'):
            return True
    return False


def looks_around(pattern: str) -> bool:
    return _LOOKS.search(_ESCAPE.sub("", pattern)) is not None


def without_looks(pattern: str) -> list[str] | None:
    """Patterns that say the same together, if it only looks ahead at its beginning; None if they cannot be written."""
    if len(pattern) > MAX_LOOKING_CHARS:
        return None
    parts: list[str] = []
    while len(parts) < MAX_LOOKS and (found := re.match(r"\^\(\?([=!])", pattern)) is not None:
        end = _end_of_bracket(pattern, found.end())
        if end is None:
            return None
        body, pattern = pattern[found.end() : end], f"^{pattern[end + 1 :]}"
        if found[1] == "=":
            parts.append(f"^(?:{body})")
        elif _LITERAL.fullmatch(text := body.removesuffix("$")):
            parts.append(pattern_of_others([re.sub(r"\\(.)", r"\1", text)], begun=text == body))
        else:
            return None
    parts.append(pattern)
    if bar_outside(pattern[1:]) is not False or any(map(looks_around, parts)):
        return None
    return parts


def _end_of_bracket(pattern: str, at: int) -> int | None:
    for end in range(at, len(pattern)):
        if pattern[end] == ")" and not re.search(r"(?:^|[^\\])(?:\\\\)*\\$", pattern[:end]):
            inside = bar_outside(pattern[at:end])
            if inside is not None:
                return end
    return None


def pattern_of_others(texts: Iterable[str], *, begun: bool = False) -> str:
    """For each text but these, or but those that begin with one of these: it differs at some character, or ends."""
    wanted = set(texts)
    if any(char in text for text in wanted for char in '"\\'):
        raise CannotRewrite("texts with quotes or backslashes in it cannot be excluded")
    nexts: dict[str, set[str]] = {text: set() for text in wanted}
    size = 0
    for text in wanted:
        size += len(text) * len(text) // 8
        if size > MAX_TEXT_CHARS:
            break
        for at, char in enumerate(text):
            nexts.setdefault(text[:at], set()).add(char)
    if size > MAX_TEXT_CHARS or sum(len(text) + 12 for text in nexts) > MAX_TEXT_CHARS:
        raise CannotRewrite("texts in it are too long or too many to exclude")
    ways = []
    for start, following in sorted(nexts.items()):
        if start in wanted and begun:
            continue
        other = f"[^{''.join(map(_escaped, sorted(following)))}](?s:.)*" if following else "(?s:.)+"
        ways.append("".join(map(_escaped, start)) + (other if start in wanted else f"(?:{other})?"))
    return f"^(?:{'|'.join(ways)})$"


def _escaped(char: str) -> str:
    return char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):x}}}"

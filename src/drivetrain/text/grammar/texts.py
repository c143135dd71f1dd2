"""Strings that stand in a call without quotes, up to a marker, and are held to their schema all the same."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from drivetrain.text.grammar.brackets import bar_outside
from drivetrain.text.grammar.lark import literal, regex
from drivetrain.text.grammar.objects import CannotWrite, check_keywords, listed
from drivetrain.text.grammar.spelling import TEXT, GrammarText, either

_ANY = r"(.|\n)*"

_CLASSES = {
    "d": "[0-9]", "D": "[^0-9]", "w": "[A-Za-z0-9_]", "W": "[^A-Za-z0-9_]", "s": r"[\s--\x85]", "S": r"[^\s\ufeff]",
}  # fmt: skip
"""What JSON Schema means by them. In a regex of the grammar they are Unicode's."""


def text_upto(grammar: GrammarText, schema: Mapping[str, Any], close: str, line_end: str = "", text: str = TEXT) -> str:
    """A string of this schema and of the terminal `text`, and the marker behind it. `line_end` may stand in between."""
    check_keywords(schema, ("type", "enum", "const", "minLength", "maxLength", "pattern"))
    if (values := listed(schema)) is not None:
        return one_of(grammar, values, close, line_end)
    terminals = [*_length(schema), *_pattern(schema)]
    if not terminals:
        return grammar.upto(close, text)
    body = f"({' & '.join([*map(regex, terminals), *([] if text == TEXT else [text])])})"
    end = f" {literal(line_end)}" if line_end else ""
    if grammar.has_special(close):
        return grammar.upto(close, grammar.shared("VALUE", body + end))
    plain = grammar.shared("PLAIN", f"{TEXT} & ~{regex(_ANY + re.escape(close) + _ANY)}")
    value = grammar.shared("VALUE", f"{body} & {plain}")
    return grammar.shared("value", f"{value}{end} {grammar.terms(close)}", "lazy")


def one_of(grammar: GrammarText, values: list[str], close: str, line_end: str = "") -> str:
    if any(close in value for value in values):
        raise CannotWrite("an enum has values that the form cannot write")
    return either(f"{literal(text) if (text := value + line_end) else ''} {grammar.terms(close)}" for value in values)


def _length(schema: Mapping[str, Any]) -> list[str]:
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if not least and most is None:
        return []
    return [f"(.|\\n){{{int(least)},{'' if most is None else int(most)}}}"]


def _pattern(schema: Mapping[str, Any]) -> list[str]:
    if "pattern" not in schema:
        return []
    whole = _whole(str(schema["pattern"]))
    if whole is None:
        what = "from ^ to $, and with | only in brackets, where arguments are not written as JSON"
        raise CannotWrite(f"pattern is honoured only {what}")
    return [re.sub(r"\\(.)", lambda escape: _CLASSES.get(escape[1], escape[0]), whole, flags=re.DOTALL)]


def _whole(pattern: str) -> str | None:
    """What stands between ^ and $; None if that is not one regex for the whole text."""
    is_framed = len(pattern) > 1 and pattern[0] == "^" and pattern[-1] == "$"
    return pattern[1:-1] if is_framed and bar_outside(pattern[1:-1]) is False else None

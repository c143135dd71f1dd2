"""HTML as elements. Whatever is not markup yet is text: shortened, made visible and escaped, here and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

MOST_CHARS = 20_000
"""Of one text in a report; more is cut in the middle."""

_VOID = frozenset({"br", "link", "meta"})
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
"""Not allowed in a document, without a picture, or able to turn around the text after it."""


@dataclass(frozen=True, slots=True)
class Html:
    """Markup that is ready to be written."""

    text: str

    def __str__(self) -> str:
        return self.text


Content: TypeAlias = "Html | str | int | Iterable[Content] | None"
Attribute: TypeAlias = "Html | str | float | bool | None"


def element(name: str, /, *content: Content, **attributes: Attribute) -> Html:
    """`class_` and `aria_label` are written `class` and `aria-label`; None and False leave an attribute out."""
    given = "".join(_attribute(key, value) for key, value in attributes.items())
    return Html(f"<{name}{given}>" if name in _VOID else f"<{name}{given}>{join(*content)}</{name}>")


def join(*content: Content) -> Html:
    """One after the other, without an element around them."""
    return Html("".join(map(_written, content)))


def visible(text: str, most: int = MOST_CHARS) -> str:
    """A text as it can be read: long ones without their middle, unseen characters by their codes."""
    return _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], shortened(text, most))


def shortened(text: str, most: int) -> str:
    """The end stays too: what is wrong with an answer is often there."""
    if len(text) <= most:
        return text
    head, tail = text[: most * 2 // 3], text[len(text) - most // 3 :]
    return f"{head}\n… ({len(text) - len(head) - len(tail):,} characters left out) …\n{tail}"


def _written(content: Content) -> str:
    if content is None:
        return ""
    if isinstance(content, Html):
        return content.text
    if isinstance(content, str):
        return escape(visible(content))
    if isinstance(content, int):
        return str(content)
    return "".join(map(_written, content))


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f' {name}=""'
    if isinstance(value, Html):
        return f' {name}="{value}"'
    shown = f"{value:.6g}" if isinstance(value, float) else str(value)
    return f' {name}="{escape(visible(shown))}"'

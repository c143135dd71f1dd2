"""The parts of a report: sections, tables with captions, folds, badges, figures in large type, texts as they came."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum

from drivetrain.tools.reports.markup import Content, Html, element


class Tone(StrEnum):
    """What a colour says; the words beside it say it too."""

    GOOD = "good"
    BAD = "bad"
    WARN = "warn"
    PLAIN = "plain"


def section(title: str, *content: Content, anchor: str = "") -> Html:
    """`anchor` is its id: made of the title, and must be given if a title comes twice."""
    name = anchor or slug(title)
    return element("section", element("h2", title, id=name), *content, aria_labelledby=name)


def slug(text: str) -> str:
    """An id of a title of ours."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def paragraph(*content: Content) -> Html:
    return element("p", *content)


def note(*content: Content) -> Html:
    """In small and soft type."""
    return element("p", *content, class_="note")


def bullets(items: Iterable[Content]) -> Html | None:
    found = [element("li", item) for item in items]
    return element("ul", *found) if found else None


def moment(text: str) -> str:
    """An ISO time in UTC, as people write it."""
    return text.replace("T", " ").replace("+00:00", " UTC")


def badges(marks: Iterable[Html]) -> Html:
    return element("div", *marks, class_="badges")


def badge(text: str, tone: Tone) -> Html:
    return element("span", text, class_=f"badge {tone}")


def code(text: str) -> Html:
    return element("code", text)


def pre(text: str, label: str) -> Html:
    """A text as it came, with its line breaks. `label` is what it is."""
    return element("figure", element("figcaption", label), element("pre", text, tabindex="0"), class_="text")


def span(text: str, class_: str) -> Html:
    return element("span", text, class_=class_)


def link(anchor: str, content: Content) -> Html:
    """To a part of the same page."""
    return element("a", content, href=f"#{anchor}")


def beside(*content: Content) -> Html:
    """Next to each other where there is room."""
    return element("div", *content, class_="beside")


def fold(summary: Content, *content: Content, anchor: str | None = None, is_open: bool = False) -> Html:
    inside = element("div", *content, class_="inside")
    return element("details", element("summary", summary), inside, id=anchor, open=is_open)


def facts_list(facts: Iterable[tuple[str, Content]]) -> Html:
    rows = [element("div", element("dt", name), element("dd", value)) for name, value in facts]
    return element("dl", *rows, class_="facts")


def tiles(figures: Iterable[tuple[str, str, str]]) -> Html:
    """The few figures that matter most: name, value, and what qualifies it."""
    made = [
        element("div", element("dt", name), element("dd", element("strong", value), element("small", more)))
        for name, value, more in figures
    ]
    return element("dl", *made, class_="tiles")


def table(
    caption: str,
    head: Sequence[str],
    rows: Sequence[Sequence[Content]],
    *,
    numbers: Collection[int] = (),
    sum_row: bool = False,
    wide: bool = False,
) -> Html:
    """The first cell of a row names it. `numbers` are the columns to align at the right.

    A `wide` table has too many columns for a phone: there each row is a list of its cells, each with its column's name.
    """

    def cell(name: str, i: int, content: Content, scope: str | None) -> Html:
        label = head[i] if wide and scope != "col" else None
        return element(name, content, scope=scope, class_="n" if i in numbers else None, data_label=label)

    heads = [cell("th", i, name, "col") for i, name in enumerate(head)]
    lines = [
        element("tr", *[cell("td" if i else "th", i, one, None if i else "row") for i, one in enumerate(row)])
        for row in rows
    ]
    foot = element("tfoot", lines.pop()) if sum_row and lines else None
    whole = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", *heads)),
        element("tbody", *lines),
        foot,
        class_="wide" if wide else None,
    )
    return element("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)


def cases(rows: Iterable[tuple[Html, Content, Sequence[Content]]]) -> Html:
    """A list of what was tried: a badge, a name, and lines below it."""
    items = [
        element("li", mark, element("div", element("p", name), *[element("p", line, class_="note") for line in lines]))
        for mark, name, lines in rows
    ]
    return element("ul", *items, class_="cases")

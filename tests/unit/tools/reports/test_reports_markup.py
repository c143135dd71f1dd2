"""Elements and their text: what is escaped, made visible and shortened."""

from __future__ import annotations

import pytest

from drivetrain.tools.reports.markup import Html, element, join, shortened, visible
from written_page import HOSTILE, WrittenPage


def test_an_element() -> None:
    made = element("td", "a < b", Html("<br>"), ["c", None, 3], class_="n", aria_label='"x"', hidden=True, id=None)
    assert str(made) == '<td class="n" aria-label="&quot;x&quot;" hidden="">a &lt; b<br>c3</td>'
    assert str(element("meta", charset="utf-8")) == '<meta charset="utf-8">'
    assert str(element("line", x1=1.0, y1=2 / 3)) == '<line x1="1" y1="0.666667"></line>'


def test_markup_is_not_escaped_again() -> None:
    inner = element("b", "&")
    assert str(join(inner, element("p", inner))) == "<b>&amp;</b><p><b>&amp;</b></p>"


@pytest.mark.parametrize("name", ["p", "pre", "code", "td"])
def test_a_hostile_text_is_text(name: str) -> None:
    page = WrittenPage(str(element("div", element(name, HOSTILE, title=HOSTILE))))
    node = page.root.one(name)
    assert [found.name for found in page.root.all("*")] == ["div", name]
    assert node.text == node.attributes["title"] == visible(HOSTILE)
    for part in ("<script>alert(1)</script>", "\\u202e\\x00\\x1b[31m\\ud800", "مرحبا", "👩‍👩‍👧", "&amp;"):
        assert part in node.text


def test_every_control_character_is_spelled_out() -> None:
    unseen = [*map(chr, range(32)), *map(chr, range(0x7F, 0xA0)), "\u2028", "\u2066", "\ud800", "\uffff"]
    for character in unseen:
        shown = visible(character)
        assert shown == character if character in "\t\n" else shown.startswith("\\"), ascii(character)
    assert visible("é\u200d\ufe0f中") == "é\u200d\ufe0f中"


def test_a_long_text_keeps_its_beginning_and_its_end() -> None:
    text = "a" * 700_000 + "b" * 300_000
    made = str(element("pre", text))
    assert len(made) < 21_000
    assert made.startswith("<pre>aaa")
    assert made.endswith("bbb</pre>")
    assert "… (980,001 characters left out) …" in made
    assert shortened("abc", 3) == "abc"

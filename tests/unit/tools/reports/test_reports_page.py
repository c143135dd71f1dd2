"""The page around a report: its frame, its policy, its data and its colours."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

import pytest

from drivetrain.tools.reports import page as page_module
from drivetrain.tools.reports import parts
from drivetrain.tools.reports.page import Head, page_of, style
from drivetrain.tools.reports.parts import Tone
from written_page import HOSTILE, WrittenPage

CHAT_STYLE = Path(page_module.__file__).parents[2] / "server" / "page" / "style.css"
COLOUR = re.compile(r"(--[\w-]+): light-dark\((#\w{6}), (#\w{6})\);")


def head(text: str = "x") -> Head:
    return Head(
        tool="drivetrain test",
        title=text,
        mark=text,
        tone=Tone.GOOD,
        verdict=text,
        facts=[(text, text), ("B", "c")],
        origin={"Command": text},
    )


def test_the_frame() -> None:
    sections = [parts.section("First part", parts.note("said")), parts.section("Second", parts.bullets(["a", "b"]))]
    page = WrittenPage(page_of(head("A title"), sections, {"a": [1, None, "é\ud800</script>"]}))
    page.check()
    assert page.root.one("title").text == page.root.one("h1").text == "A title"
    assert [node.attributes["id"] for node in page.root.all("h2")] == ["first-part", "second"]
    assert [node.attributes["aria-labelledby"] for node in page.root.all("section")] == ["first-part", "second"]
    assert page.root.one("dl", "facts").text == "A titleA titleBcCommandA title"
    assert page.data == {"a": [1, None, "é\ud800</script>"]}


def test_the_policy_allows_our_style_and_nothing_else() -> None:
    page = WrittenPage(page_of(head(), [], {}))
    written = page.root.one("style").text
    assert written == style()
    digest = base64.b64encode(hashlib.sha256(written.encode()).digest()).decode()
    (policy,) = [meta.attributes["content"] for meta in page.root.all("meta") if "http-equiv" in meta.attributes]
    assert f"style-src 'sha256-{digest}'" in policy
    assert "url(" not in written
    assert "@import" not in written


def test_a_hostile_report_is_text_everywhere() -> None:
    sections = [
        parts.section("Parts", parts.table(HOSTILE, [HOSTILE, "b"], [[HOSTILE, HOSTILE]]), parts.pre(HOSTILE, HOSTILE)),
        parts.fold(HOSTILE, HOSTILE, parts.badge(HOSTILE, Tone.BAD), anchor="one"),
        parts.tiles([(HOSTILE, HOSTILE, HOSTILE)]),
        parts.cases([(parts.badge(HOSTILE, Tone.WARN), HOSTILE, [HOSTILE])]),
    ]
    text = page_of(head(HOSTILE), sections, {HOSTILE: HOSTILE})
    page = WrittenPage(text)
    page.check()
    text.encode("utf-8")
    assert text.count("alert(1)") > 10
    assert page.data == {HOSTILE: HOSTILE}


def test_data_that_are_too_large_are_not_carried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "MOST_DATA_BYTES", 10)
    page = WrittenPage(page_of(head(), [], {"a": "b" * 10}))
    assert not page.root.all("a")
    assert "too large for this page; --json FILE writes them" in page.root.one("footer").text


def test_the_colours_are_those_of_the_chat_page() -> None:
    ours, chat = ({name: pair for name, *pair in COLOUR.findall(text)} for text in (style(), CHAT_STYLE.read_text()))
    common = ours.keys() & chat.keys()
    assert len(common) >= 13
    assert {name: ours[name] for name in common} == {name: chat[name] for name in common}
    assert set(re.findall(r"var\((--[\w-]+)\)", style())) <= ours.keys() | {"--sans", "--mono", "--radius"}


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_words_stand_out_from_their_ground(mode: int) -> None:
    colours = {name: pair[mode] for name, *pair in COLOUR.findall(style())}
    pairs = [(ink, ground) for ink in ("ink", "ink-soft", "accent") for ground in ("paper", "card", "sunken")]
    pairs += [(tone, f"{tone}-wash") for tone in ("good", "bad", "warn")]
    for ink, ground in pairs:
        assert contrast(colours[f"--{ink}"], colours[f"--{ground}"]) >= 4.5, (ink, ground)
    for shape in ("accent", "other", "good", "bad", "warn", "line-strong"):
        assert contrast(colours[f"--{shape}"], colours["--card"]) >= 3, shape


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    red, green, blue = (
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue

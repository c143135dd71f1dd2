"""The HTML report of a comparison: what diverged, and what each side rated there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drivetrain.tools.diff import page as page_module
from drivetrain.tools.diff.report import DiffReport
from recorded_reports import diff_report, diff_text, long_answer
from written_page import HOSTILE, Node, WrittenPage


def written(report: DiffReport) -> WrittenPage:
    found = WrittenPage(diff_text(report))
    found.check()
    return found


def folds(root: Node) -> list[tuple[str, str]]:
    return [(fold.one("span", "badge").text, fold.one("summary").one("code").text) for fold in root.all("details")]


def test_what_diverged_comes_first() -> None:
    page = written(diff_report())
    marks = [mark for mark, _ in folds(page.root)]
    assert marks == ["diverges", "tie", "diverges", "other tokens", "agrees", "agrees"]
    assert page.root.one("p", "verdict").text == (
        "differentnative and llamacpp: of 6 prompts 2 agree completely, 1 diverge in a tie, 2 diverge, "
        "1 are tokenized differently"
    )
    bar = next(svg for svg in page.root.all("svg", "meter"))
    assert [rect.one("title").text for rect in bar.all("rect")] == [
        "agrees: 2",
        "tie: 1",
        "diverges: 2",
        "other tokens: 1",
    ]
    assert [pair["second"] for pair in page.data["pairs"]] == ["llamacpp"]


def test_both_lists_stand_side_by_side() -> None:
    fold = written(diff_report()).root.all("details")[0]
    tables = fold.all("table")
    assert [table.one("caption").text for table in tables] == [
        "native: what it rated likeliest there", "llamacpp: what it rated likeliest there",
    ]  # fmt: skip
    first = [
        [cell.text for cell in row.all("*") if cell.name in {"th", "td"}] for row in tables[0].one("tbody").all("tr")
    ]
    assert first == [
        ["' Paris'#50 taken", "", "30.1%", "-1.2000"],
        ["' the'#51 taken by the other", "", "15.0%", "-1.9000"],
        ["' a\\n'#52", "", "5.0%", "-3.0000"],
    ]
    assert [svg.attributes["aria-label"] for svg in tables[0].all("svg")] == ["30.1%", "15.0%", "5.0%"]
    assert "Here native rates the other's token 0.7 below its own, beyond the tolerance of 0.001." in fold.text
    assert fold.all("pre")[1].text == " word0 word1"


def test_an_answer_that_ended_before() -> None:
    fold = written(diff_report()).root.all("details")[2]
    assert "llamacpp ended before" in [caption.text for caption in fold.all("caption")]
    assert "Here one answer ends where the other continues." in fold.text


def test_all_the_same_and_not_completed() -> None:
    same = diff_report(prompts=1)
    assert written(same).root.one("p", "verdict").text == "samenative and llamacpp: of 1 prompts 1 agree completely"
    assert written(replace(same, complete=False)).root.one("p", "verdict").text.startswith("not completed")


def test_three_sides_are_two_pairs() -> None:
    root = written(diff_report(sides=3)).root
    assert [node.text for node in root.all("h2")] == [
        "Engines", "Logprobs", "native and llamacpp", "native and transformers",
    ]  # fmt: skip
    assert len(root.all("details")) == 12


def test_of_many_prompts_some_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "SHOWN_PROMPTS", 4)
    page = written(diff_report(prompts=10))
    assert len(page.root.all("details")) == 4
    assert "… and 6 more prompts; the data of this report have all." in page.root.text
    assert len(page.data["pairs"][0]["prompts"]) == 10


def test_prompts_and_answers_are_text() -> None:
    page = written(diff_report(HOSTILE, sides=3))
    assert "<script>alert(1)</script>" in page.root.text
    assert HOSTILE in page.data["prompts"][0]


def test_an_answer_of_a_million_characters_is_shortened() -> None:
    text = diff_text(long_answer(diff_report(), 1_000_000))
    page = WrittenPage(text)
    page.check()
    shown = len(page.root.one("main").text)
    assert shown < 40_000
    assert "characters left out" in page.root.text
    assert len(page.data["sides"][0]["answers"][0]["places"][0]["token"]) == 1_000_000

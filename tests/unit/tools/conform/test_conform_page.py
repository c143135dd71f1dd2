"""The HTML report of a run, from results that are written down here."""

from __future__ import annotations

from typing import Any

from drivetrain.tools.conform.case import ALWAYS, Area, Case
from drivetrain.tools.conform.exchange import Shown
from drivetrain.tools.conform.page import page
from drivetrain.tools.conform.report import CaseResult, ConformReport, document
from drivetrain.tools.conform.verdict import Outcome
from written_page import HOSTILE, WrittenPage

ORIGIN = {"Machine": "a CPU, 2 cores", "Command": "drivetrain conform http://h"}


async def _check(_: object) -> None: ...


def result(name: str, outcome: Outcome = Outcome.PASS, reason: str = "", *exchanges: Shown) -> CaseResult:
    area = Area(name.partition(".")[0])
    case = Case(id=name, area=area, asks=f"asks {name}", holds="it holds", offered=ALWAYS, check=_check)
    return CaseResult(case=case, outcome=outcome, reason=reason, exchanges=exchanges)


def report(*results: CaseResult, **changes: Any) -> ConformReport:
    known = {"url": "http://h/v1", "model": "m", "began": "2026-01-01", "version": "9", "complete": True}
    return ConformReport(**{**known, **changes}, results=list(results))


def written(made: ConformReport) -> WrittenPage:
    found = WrittenPage(page(made, ORIGIN))
    found.check()
    assert found.data == document(made)
    return found


FAILED = result("chat.roles", Outcome.FAIL, "a role is lost", Shown("POST /v1/chat", 200, "data: {}", 0.25))


def test_areas_by_outcome() -> None:
    made = report(result("models.list"), result("chat.shape"), FAILED, result("chat.n", Outcome.NOT_RUN, "no time"))
    root = written(made).root
    assert [cell.text for cell in root.one("thead").all("th")] == [
        "area", "pass", "fail", "not offered", "not run", "share",
    ]  # fmt: skip
    rows = [
        [cell.text for cell in row.all("*") if cell.name in {"th", "td"}][:5] for row in root.one("tbody").all("tr")
    ]
    assert rows == [["models", "1", "-", "-", "-"], ["chat", "1", "1", "-", "1"]]
    assert root.one("tfoot").one("th").text == "all"
    bars = [svg.attributes["aria-label"] for svg in root.all("svg", "meter")]
    assert bars == ["1 pass", "1 pass, 1 fail, 1 not run", "2 pass, 1 fail, 1 not run"]
    assert root.one("p", "verdict").text == (
        "fail1 of 4 cases failed; 2 passed, 0 are not offered, 1 could not be run."
    )


def test_each_failure_has_its_exchanges_and_is_linked() -> None:
    root = written(report(result("models.list"), FAILED)).root
    (failure,) = [node for node in root.all("details") if node.attributes.get("id") == "case-chat.roles"]
    assert "open" in failure.attributes
    assert failure.one("summary").text == "chat.rolesa role is lost"
    assert [pre.text for pre in failure.all("pre")] == ["POST /v1/chat", "data: {}"]
    assert failure.all("figcaption")[1].text == "Reply: status 200, 0.25 s"
    assert [link.text for link in root.all("a") if link.attributes["href"] == "#case-chat.roles"] == ["chat.roles"]


def test_many_failures_are_folded() -> None:
    many = [result(f"chat.c{i}", Outcome.FAIL, "x") for i in range(4)]
    folds = [node for node in written(report(*many)).root.all("details") if "case-" in node.attributes["id"]]
    assert len(folds) == 4
    assert not any("open" in fold.attributes for fold in folds)


def test_no_failure_and_an_interrupt() -> None:
    root = written(report(result("models.list"))).root
    assert root.one("p", "verdict").all("span")[0].text == "pass"
    assert "Failures" not in [node.text for node in root.all("h2")]
    cut = written(report(result("models.list"), complete=False)).root.one("p", "verdict").text
    assert cut.startswith("interruptedNone of 1 cases failed")
    assert cut.endswith("The run was interrupted: cases are missing.")


def test_what_a_server_sends_is_text() -> None:
    shown = Shown(HOSTILE, 0, HOSTILE * 1000, 0.1)
    made = report(
        result("chat.roles", Outcome.FAIL, HOSTILE, shown), model=HOSTILE, about={"engine": HOSTILE, "server": HOSTILE}
    )
    root = written(made).root
    assert "<script>alert(1)</script>" in root.one("h1").text
    assert "no answer" in root.all("figcaption")[1].text
    assert len(page(made, ORIGIN)) < 700_000

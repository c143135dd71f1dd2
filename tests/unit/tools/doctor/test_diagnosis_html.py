"""The HTML report about a server, from reports that are written down here."""

from __future__ import annotations

from typing import Any

from drivetrain.cli.terminal.values import plain
from drivetrain.tools.doctor.findings import findings
from drivetrain.tools.doctor.html_page import page
from drivetrain.tools.doctor.report import Memory, ModelReport, ServerKind, ServerReport, Severity, Unread
from recorded_reports import ORIGIN, doctor_report
from written_page import HOSTILE, WrittenPage


def written(report: ServerReport) -> WrittenPage:
    found = WrittenPage(page(report, "2026-01-01T12:00:00+00:00", ORIGIN, plain(report)))
    found.check()
    assert found.data == plain(report)
    return found


def bare(**changes: Any) -> ServerReport:
    known = {"url": "http://h", "kind": ServerKind.OURS, "local": True, "encrypted": False, "sent_key": False}
    return ServerReport(**{**known, **changes})


def test_what_to_do_comes_first() -> None:
    report = doctor_report()
    root = written(report).root
    marks = [item.one("span", "badge").text for item in root.one("ul", "cases").all("li")]
    assert marks == ["act" if finding.level is Severity.ACT else "note" for finding in findings(report)]
    assert root.one("p", "verdict").text.startswith(f"needs action{marks.count('act')} ")
    assert f"→ {findings(report)[0].remedy}" in root.one("ul", "cases").text
    rows = [[cell.text for cell in row.all("*") if cell.name in {"th", "td"}] for row in root.all("tbody")[0].all("tr")]
    assert rows[0] == ["small", "ready", "2", "1", "100", "0 %", "100 ms", "2.0 s"]
    assert rows[1] == ["large", "unloaded", "–", "–", "0", "–", "–", "–"]


def test_all_is_well() -> None:
    root = written(bare()).root
    assert root.one("p", "verdict").text == "wellNo findings: all is well."
    assert [node.text for node in root.all("h2")] == []


def test_memory_and_what_could_not_be_read() -> None:
    memory = (Memory("cpu", 1, 1, 4 * 10**9, 10**9), Memory("odd", 1, 1, 0, 0))
    root = written(bare(memory=memory, unread=(Unread("/metrics", 404, "status 404"),))).root
    assert root.one("svg", "meter").attributes["aria-label"] == "75 %"
    assert "/metricsnot read: status 404" in root.text


def test_what_the_server_said_is_text() -> None:
    model = ModelReport(name=HOSTILE, state=HOSTILE, aliases=(HOSTILE,), engine=HOSTILE, failure=HOSTILE)
    report = bare(version=HOSTILE, models=(model,), unread=(Unread("/x", 0, HOSTILE),))
    assert "<script>alert(1)</script>" in written(report).root.one("main").text

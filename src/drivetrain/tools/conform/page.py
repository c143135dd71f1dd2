"""The results of a run as an HTML page: areas by outcome, each failure with its exchanges, all cases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from drivetrain.tools.conform.exchange import Shown
from drivetrain.tools.conform.report import CaseResult, ConformReport, area_table, document, quick_line
from drivetrain.tools.conform.verdict import Outcome
from drivetrain.tools.reports import parts
from drivetrain.tools.reports.markup import Content, Html
from drivetrain.tools.reports.meters import stack
from drivetrain.tools.reports.page import Head, page_of
from drivetrain.tools.reports.parts import Tone

TONES = {
    Outcome.PASS: Tone.GOOD,
    Outcome.FAIL: Tone.BAD,
    Outcome.NOT_OFFERED: Tone.PLAIN,
    Outcome.NOT_RUN: Tone.WARN,
}
OPEN = 3
"""So few failures are shown unfolded."""


def page(report: ConformReport, origin: Mapping[str, str]) -> str:
    """`origin` is how the report came about: the command, the machine."""
    failed = report.of(Outcome.FAIL)
    facts: list[tuple[str, Content]] = [("Server", report.url), ("Model", report.model)]
    facts += [(name.capitalize(), value) for name, value in report.about.items() if name != "server"]
    facts += [
        ("Began", parts.moment(report.began)),
        ("Took", f"{report.took_s:.0f} s"),
        ("Checked by", f"drivetrain {report.version}"),
    ]
    head = Head(
        tool="drivetrain conform",
        title=f"Conformance of {report.model}",
        mark="fail" if failed else "pass" if report.complete else "interrupted",
        tone=Tone.BAD if failed else Tone.GOOD if report.complete else Tone.WARN,
        verdict=_verdict(report),
        facts=facts,
        origin=origin,
    )
    return page_of(head, _sections(report, failed), document(report))


def _verdict(report: ConformReport) -> str:
    counts, run = report.counts, len(report.results)
    said = f"{counts[Outcome.FAIL]} of {run} cases failed" if counts[Outcome.FAIL] else f"None of {run} cases failed"
    rest = f"{counts[Outcome.NOT_OFFERED]} are not offered, {counts[Outcome.NOT_RUN]} could not be run"
    cut = "" if report.complete else " The run was interrupted: cases are missing."
    return f"{said}; {counts[Outcome.PASS]} passed, {rest}.{cut} {quick_line(report)}".rstrip()


def _sections(report: ConformReport, failed: list[CaseResult]) -> Iterator[Html]:
    share = [(str(outcome).capitalize(), f"{report.counts[outcome]:,}", _share(report, outcome)) for outcome in Outcome]
    yield parts.section("Result", parts.tiles(share), _matrix(report))
    if failed:
        yield parts.section("Failures", *[_failure(result, is_open=len(failed) <= OPEN) for result in failed])
    areas = {area: [result for result in report.results if result.case.area is area] for area, _ in report.by_area()}
    yield parts.section("All cases", *[_area(str(area), found) for area, found in areas.items()])


def _share(report: ConformReport, outcome: Outcome) -> str:
    return f"{report.counts[outcome] / len(report.results):.0%} of {len(report.results)}" if report.results else ""


def _matrix(report: ConformReport) -> Html:
    head, rows = area_table(report)
    counts = [*(found for _, found in report.by_area()), report.counts]
    lines: list[list[Content]] = [
        [parts.link(f"area-{row[0]}", row[0]) if row[0] != "all" else row[0], *row[1:], _bar(found)]
        for row, found in zip(rows, counts, strict=True)
    ]
    columns = [*head, "share"]
    return parts.table("How many cases of each area ended how", columns, lines, numbers={1, 2, 3, 4}, sum_row=True)


def _bar(counts: Counter[Outcome]) -> Html:
    said = ", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome if counts[outcome])
    return stack([(TONES[outcome], counts[outcome], str(outcome)) for outcome in Outcome], said)


def _failure(result: CaseResult, *, is_open: bool) -> Html:
    case = result.case
    summary = [parts.code(case.id), parts.span(result.reason, "note")]
    what = parts.paragraph(f"{case.asks}. Must hold: {case.holds}.")
    return parts.fold(summary, what, *map(_exchange, result.exchanges), anchor=f"case-{case.id}", is_open=is_open)


def _exchange(shown: Shown) -> Html:
    status = f"status {shown.status}" if shown.status else "no answer"
    sent, reply = (
        parts.pre(shown.request, "Request"),
        parts.pre(shown.reply or "(nothing)", f"Reply: {status}, {shown.took_s} s"),
    )
    return parts.beside(sent, reply)


def _area(name: str, results: list[CaseResult]) -> Html:
    counts = Counter(result.outcome for result in results)
    said = ", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome if counts[outcome])
    return parts.fold(
        [parts.span(name, "name"), parts.span(said, "note")], parts.cases(map(_case, results)), anchor=f"area-{name}"
    )


def _case(result: CaseResult) -> tuple[Html, Content, list[Content]]:
    name: Content = parts.code(result.case.id)
    if result.outcome is Outcome.FAIL:
        name = parts.link(f"case-{result.case.id}", name)
    lines: list[Content] = [f"{result.case.asks}. {result.case.holds}."]
    return (
        parts.badge(str(result.outcome), TONES[result.outcome]),
        name,
        [*lines, *([result.reason] if result.reason else [])],
    )

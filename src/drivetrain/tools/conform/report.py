"""The results of a run, as text and as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from drivetrain.core.errors import one_line
from drivetrain.tools.conform.case import Area, Case
from drivetrain.tools.conform.exchange import Shown
from drivetrain.tools.conform.verdict import Outcome

INDENT = "    "
SHOWN_LINE_CHARS = 220


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """`reason` is empty for a pass. Only failures keep their exchanges."""

    case: Case
    outcome: Outcome
    reason: str = ""
    took_s: float = 0.0
    exchanges: tuple[Shown, ...] = ()


@dataclass(slots=True, kw_only=True)
class ConformReport:
    """`about` is what the server says about itself. `complete` is False if the run was interrupted.

    `quick_of` is how many cases there are, if only the quick ones of them were to be asked.
    """

    url: str
    model: str
    began: str
    version: str
    about: dict[str, str] = field(default_factory=dict)
    results: list[CaseResult] = field(default_factory=list)
    took_s: float = 0.0
    complete: bool = False
    quick_of: int | None = None

    def of(self, outcome: Outcome) -> list[CaseResult]:
        return [result for result in self.results if result.outcome is outcome]

    @property
    def counts(self) -> Counter[Outcome]:
        return Counter(result.outcome for result in self.results)

    def by_area(self) -> list[tuple[Area, Counter[Outcome]]]:
        """The areas of the cases that were run."""
        found = {area: Counter(r.outcome for r in self.results if r.case.area is area) for area in Area}
        return [(area, counts) for area, counts in found.items() if counts]


def area_table(report: ConformReport) -> tuple[list[str], list[list[str]]]:
    """Head and rows; the last row is the sum."""
    rows = [[str(area), *_cells(counts)] for area, counts in report.by_area()]
    return ["area", *map(str, Outcome)], [*rows, ["all", *_cells(report.counts)]]


def _cells(counts: Counter[Outcome]) -> list[str]:
    return [str(counts[outcome]) if counts[outcome] else "-" for outcome in Outcome]


def case_table(cases: Iterable[Case]) -> tuple[list[str], list[list[str]]]:
    return ["case", "asks", "must hold"], [[case.id, case.asks, case.holds] for case in cases]


OVER = "the time of a quick run was over"


def quick_line(report: ConformReport) -> str:
    """Empty if all cases were to be asked."""
    if report.quick_of is None:
        return ""
    left = sum(result.reason == OVER for result in report.results)
    over = f"; its time was over before {left} more" if left else ""
    asked = f"{len(report.results) - left} of {report.quick_of} cases"
    return f"A quick run: {asked}{over}; without --quick, all are asked."


def detail_lines(report: ConformReport) -> list[str]:
    """The failures with their last exchange, then a line for each case that is not offered or was not run."""
    lines: list[str] = []
    for result in report.of(Outcome.FAIL):
        lines += ["", f"FAIL {result.case.id}: {result.reason}", f"{INDENT}asks: {result.case.asks}"]
        lines += [f"{INDENT}must hold: {result.case.holds}", *_exchange_lines(result.exchanges)]
    for outcome in (Outcome.NOT_OFFERED, Outcome.NOT_RUN):
        found = report.of(outcome)
        if found:
            lines += ["", f"{str(outcome).capitalize()}:"]
            lines += [f"{INDENT}{result.case.id}: {one_line(result.reason, SHOWN_LINE_CHARS)}" for result in found]
    return lines


def _exchange_lines(exchanges: Sequence[Shown]) -> list[str]:
    """The last exchange, shortened; the JSON and HTML reports have all of them."""
    if not exchanges:
        return []
    shown = exchanges[-1]
    head, _, body = shown.request.partition("\n\n")
    sent = f"{head.splitlines()[0]} {one_line(body, SHOWN_LINE_CHARS)}".rstrip()
    replied = [one_line(line, SHOWN_LINE_CHARS) for line in shown.reply.splitlines() if line.strip()]
    long = replied if len(replied) <= 8 else [*replied[:3], "…", *replied[-4:]]
    return [f"{INDENT}> {sent}", *(f"{INDENT}< {line}" for line in [f"status {shown.status}", *long])]


def document(report: ConformReport) -> dict[str, Any]:
    """The whole report as plain data."""
    return {
        "drivetrain": report.version,
        "url": report.url,
        "model": report.model,
        "began": report.began,
        "took_s": round(report.took_s, 2),
        "complete": report.complete,
        "quick_of": report.quick_of,
        "server": report.about,
        "counts": {str(outcome): report.counts[outcome] for outcome in Outcome},
        "areas": {
            str(area): {str(outcome): counts[outcome] for outcome in Outcome} for area, counts in report.by_area()
        },
        "cases": [_result(result) for result in report.results],
    }


def _result(result: CaseResult) -> dict[str, Any]:
    case = result.case
    return {
        "id": case.id,
        "area": str(case.area),
        "asks": case.asks,
        "holds": case.holds,
        "offered": case.offered,
        "outcome": str(result.outcome),
        "said": result.reason,
        "took_s": result.took_s,
        "exchanges": [asdict(shown) for shown in result.exchanges],
    }

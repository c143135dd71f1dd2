"""The results of replaying receipts as an HTML page: the counts, and each answer that did not come again as it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from drivetrain.tools.diff.page import likeliest
from drivetrain.tools.replay.report import ReplayReport, exit_code, group_table, summary_line
from drivetrain.tools.replay.verdict import ChoiceVerdict, Replayed, Verdict
from drivetrain.tools.reports import parts
from drivetrain.tools.reports.markup import Content, Html
from drivetrain.tools.reports.meters import stack
from drivetrain.tools.reports.page import Head, page_of
from drivetrain.tools.reports.parts import Tone

TONES = {
    Verdict.IDENTICAL: Tone.GOOD,
    Verdict.ROUNDING: Tone.PLAIN,
    Verdict.DIFFERENT: Tone.BAD,
    Verdict.OTHER_PROMPT: Tone.BAD,
    Verdict.FAILED: Tone.BAD,
    Verdict.REFUSED: Tone.WARN,
    Verdict.INVALID: Tone.BAD,
}
MARKS = {0: ("again", Tone.GOOD), 1: ("different", Tone.BAD), 2: ("not all replayed", Tone.WARN)}
SHOWN_RECEIPTS = 200


def page(report: ReplayReport, origin: Mapping[str, str], data: Mapping[str, Any]) -> str:
    """`origin` is how the report came about; `data` is the report as plain data."""
    mark, tone = MARKS[exit_code(report)] if report.complete else ("not completed", Tone.WARN)
    models = dict.fromkeys(result.receipt.model for result in report.results if result.receipt is not None)
    tolerances = dict.fromkeys(f"{group.on.tolerance:g}" for group in report.groups if group.on is not None)
    facts: list[tuple[str, Content]] = [
        ("Receipts", f"{len(report.results):,}"),
        ("Rounding", f"a shift of logits by {' or '.join(tolerances) or 'nothing'}"),
        ("Began", parts.moment(report.began)),
    ]
    head = Head(
        tool="drivetrain replay",
        title=", ".join(models) or "receipts",
        mark=mark,
        tone=tone,
        verdict=summary_line(report),
        facts=facts,
        origin=origin,
    )
    return page_of(head, _sections(report), data)


def _sections(report: ReplayReport) -> Iterator[Html]:
    found = [(one, n) for one in Verdict if (n := sum(result.verdict is one for result in report.results))]
    names, rows = group_table(report)
    yield parts.section(
        "Verdicts",
        stack([(str(TONES[verdict]), count, str(verdict)) for verdict, count in found], summary_line(report)),
        parts.badges(parts.badge(f"{verdict}: {count:,}", TONES[verdict]) for verdict, count in found),
        parts.table("What was replayed", names, rows, numbers=set(range(4, len(names))), wide=True),
    )
    told = [result for result in report.results if result.verdict is not Verdict.IDENTICAL]
    if told:
        rest = len(told) - SHOWN_RECEIPTS
        yield parts.section(
            "Answers that did not come again as they were",
            *[_receipt(result) for result in islice(told, SHOWN_RECEIPTS)],
            parts.note(f"… and {rest:,} more receipts; the data of this report have all.") if rest > 0 else None,
        )


def _receipt(result: Replayed) -> Html:
    name = result.where if result.receipt is None else result.receipt.request_id
    places = [f"at token {choice.at}" for choice in result.choices if choice.at is not None]
    mark = parts.badge(str(result.verdict), TONES[result.verdict])
    summary = [mark, parts.code(name), parts.span(", ".join(places), "note")]
    about = parts.note(result.where)
    if result.why:
        return parts.fold(summary, about, parts.paragraph(result.why))
    choices = [choice for choice in result.choices if choice.verdict is not Verdict.IDENTICAL]
    return parts.fold(summary, about, *[part for choice in choices for part in _choice(choice)])


def _choice(choice: ChoiceVerdict) -> Iterator[Html]:
    yield parts.paragraph(f"Choice {choice.index}: {choice.why}.")
    if choice.parting is not None:
        one, two = choice.parting.first, choice.parting.second
        yield parts.beside(likeliest("recorded", one, two, "side-0"), likeliest("again", two, one, "side-1"))

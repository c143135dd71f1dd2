"""A report as an HTML page: the findings with what to do, then each model and the server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from drivetrain.store.display import size
from drivetrain.tools.doctor.amounts import many, percent, span
from drivetrain.tools.doctor.report import FAILURES, Finding, HistogramTimes, ModelReport, ServerReport, Severity
from drivetrain.tools.doctor.text import about_model, about_server, headline
from drivetrain.tools.reports import parts
from drivetrain.tools.reports.markup import Content, Html
from drivetrain.tools.reports.meters import meter
from drivetrain.tools.reports.page import Head, page_of
from drivetrain.tools.reports.parts import Tone

NONE = "–"


def page(report: ServerReport, began: str, origin: Mapping[str, str], data: Mapping[str, Any]) -> str:
    """`origin` is how the report came about; `data` is the report as plain data."""
    mark, tone = ("well", Tone.GOOD) if not report.findings else ("notes", Tone.WARN)
    if report.needs_action:
        mark, tone = "needs action", Tone.BAD
    state: list[tuple[str, Content]] = [("State", ", ".join(headline(report))), ("Examined", parts.moment(began))]
    head = Head(
        tool="drivetrain doctor",
        title=f"State of {report.url}",
        mark=mark,
        tone=tone,
        verdict=_verdict(report),
        facts=state,
        origin=origin,
    )
    return page_of(head, _sections(report), data)


def _verdict(report: ServerReport) -> str:
    if not report.findings:
        return "No findings: all is well."
    acting = sum(finding.level is Severity.ACT for finding in report.findings)
    notes = len(report.findings) - acting
    counted = [many(acting, "finding") + " to act on"] if acting else []
    return f"{' and '.join([*counted, *([many(notes, 'note')] if notes else [])])}: {report.findings[0].what}"


def _sections(report: ServerReport) -> Iterator[Html]:
    if report.findings:
        yield parts.section("Findings", parts.cases(map(_finding, report.findings)))
    if report.models:
        yield parts.section("Models", _models(report), *map(_model, report.models))
    rows = [*about_server(report), *((unread.path, f"not read: {unread.why}") for unread in report.unread)]
    memory = [(one.device, one.total_bytes - one.available_bytes, one.total_bytes) for one in report.memory]
    bars: list[list[Content]] = [
        [device, meter(used / total, "side-0", percent(used / total)), f"{size(used)} of {size(total)}"]
        for device, used, total in memory
        if total > 0
    ]
    if rows:
        used = parts.table("Memory in use", ["device", "share", "used"], bars, numbers={2}) if bars else None
        yield parts.section("Server", parts.facts_list(rows), used)


def _finding(finding: Finding) -> tuple[Html, Content, list[Content]]:
    mark = parts.badge("act", Tone.BAD) if finding.level is Severity.ACT else parts.badge("note", Tone.WARN)
    model = f"{finding.model}: " if finding.model else ""
    return mark, f"{model}{finding.what}", [finding.means, f"→ {finding.remedy}"]


def _models(report: ServerReport) -> Html:
    head = ["model", "state", "running", "waiting", "ended", "failed", "first token", "99 % within"]
    rows = [[model.name, model.state, *_counts(model), *_times(model.first_token)] for model in report.models]
    return parts.table("Since the server started", head, rows, numbers=range(2, len(head)), wide=True)


def _counts(model: ModelReport) -> list[str]:
    if not model.loaded:
        return [NONE] * 2 + [f"{model.ended:,}", percent(model.share(*FAILURES)) if model.ended else NONE]
    failed = percent(model.share(*FAILURES)) if model.ended else NONE
    return [f"{model.running or 0:,}", f"{model.waiting or 0:,}", f"{model.ended:,}", failed]


def _times(times: HistogramTimes | None) -> list[str]:
    return [NONE, NONE] if times is None else [span(times.median_s), span(times.p99_s)]


def _model(model: ModelReport) -> Html | None:
    known = {
        "aliases": ", ".join(model.aliases), "engine": model.engine, "device": model.device, "dtype": model.dtype,
        "context": f"{model.context_length:,} tokens" if model.context_length else "", "failure": model.failure,
    }  # fmt: skip
    rows = [(name, value) for name, value in known.items() if value]
    running = about_model(model) if model.loaded else ()
    if not model.loaded and not rows:
        return None
    return parts.fold([parts.code(model.name), parts.span(model.state, "note")], parts.facts_list([*rows, *running]))

"""The report as one self-contained HTML file. What a server sent is text there, never markup."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from drivetrain.tools.conform.exchange import Shown
from drivetrain.tools.conform.report import CaseResult, ConformReport, area_table
from drivetrain.tools.conform.verdict import Outcome

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --pass: #2a7d3f; --fail: #c0392b; --none: #777; --not: #a66a00 }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem; margin-bottom: .2rem } h2 { font-size: 1.15rem; margin-top: 2rem }
.facts { color: var(--none) }
table { border-collapse: collapse; width: 100%; margin: 1rem 0 }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem; border-bottom: 1px solid var(--line) }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
tr:last-child.sum td { font-weight: 600 }
code, pre { font: 13px/1.45 ui-monospace, monospace }
pre { white-space: pre-wrap; overflow-wrap: anywhere; border: 1px solid var(--line); padding: .6rem }
.outcome { font-weight: 600; white-space: nowrap }
.pass { color: var(--pass) } .fail { color: var(--fail) }
.not-offered { color: var(--none) } .not-run { color: var(--not) }
summary { cursor: pointer } .reason { overflow-wrap: anywhere }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(report: ConformReport) -> str:
    return "\n".join(_lines(report)) + "\n"


def _lines(report: ConformReport) -> Iterator[str]:
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>Conformance of {escape(report.model)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>"
    yield f"<h1>Conformance of {escape(report.model)}</h1>"
    facts = [report.url, report.began, f"{report.took_s:.0f} s", f"drivetrain {report.version}"]
    facts += [f"{name}: {value}" for name, value in report.about.items()]
    yield f'<p class="facts">{escape(" · ".join(facts))}</p>'
    if not report.complete:
        yield '<p class="not-run">The run was interrupted: cases are missing.</p>'
    yield from _areas(report)
    failed = report.of(Outcome.FAIL)
    if failed:
        yield "<h2>Failures</h2>"
    for result in failed:
        yield from _failure(result)
    yield "<h2>All cases</h2>\n<table>"
    yield "<tr><th>case</th><th>outcome</th><th>asks, and what must hold</th><th>found</th></tr>"
    for result in report.results:
        yield _row(result)
    yield "</table>\n</body>\n</html>"


def _areas(report: ConformReport) -> Iterator[str]:
    head, rows = area_table(report)
    yield "<table>\n<tr>" + "".join(f"<th{_number(i)}>{escape(cell)}</th>" for i, cell in enumerate(head)) + "</tr>"
    for row in rows:
        kind = ' class="sum"' if row is rows[-1] else ""
        yield f"<tr{kind}>" + "".join(f"<td{_number(i)}>{escape(cell)}</td>" for i, cell in enumerate(row)) + "</tr>"
    yield "</table>"


def _number(column: int) -> str:
    return ' class="n"' if column else ""


def _failure(result: CaseResult) -> Iterator[str]:
    case = result.case
    yield f'<details id="{escape(case.id)}" open>\n<summary><code>{escape(case.id)}</code> '
    yield f'<span class="fail reason">{escape(result.reason)}</span></summary>'
    yield f"<p>{escape(case.asks)}. Must hold: {escape(case.holds)}.</p>"
    for shown in result.exchanges:
        yield from _exchange(shown)
    yield "</details>"


def _exchange(shown: Shown) -> Iterator[str]:
    status = f"status {shown.status}" if shown.status else "no answer"
    yield f"<pre>{escape(shown.request)}</pre>"
    yield f"<pre>{escape(f'{status}, {shown.took_s} s')}\n{escape(shown.reply)}</pre>"


def _row(result: CaseResult) -> str:
    kind = str(result.outcome).replace(" ", "-")
    name = f"<code>{escape(result.case.id)}</code>"
    if result.outcome is Outcome.FAIL:
        name = f'<a href="#{escape(result.case.id)}">{name}</a>'
    what = f"{result.case.asks}. {result.case.holds}."
    return (
        f'<tr><td>{name}</td><td class="outcome {kind}">{escape(str(result.outcome))}</td>'
        f'<td>{escape(what)}</td><td class="reason">{escape(result.reason)}</td></tr>'
    )

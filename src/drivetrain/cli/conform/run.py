"""`drivetrain conform` at work: choose the cases, run them, print. An interrupt ends the run, not the printing."""

from __future__ import annotations

import argparse
import difflib
import time
from collections.abc import Sequence
from datetime import UTC, datetime

from drivetrain import __version__
from drivetrain.cli.flags.keys import key_in_environment, sendable
from drivetrain.cli.terminal import origin, output
from drivetrain.cli.terminal.boundary import FAILED
from drivetrain.cli.terminal.event_loop import run_cancellable
from drivetrain.cli.terminal.progress import progress_line
from drivetrain.cli.terminal.report_files import write_json, write_text
from drivetrain.core.errors import InvalidSetting
from drivetrain.http.address import Address
from drivetrain.tools.conform import runner
from drivetrain.tools.conform.case import Area, Case
from drivetrain.tools.conform.cases import ALL
from drivetrain.tools.conform.cases.quick import quick_of
from drivetrain.tools.conform.client import Client
from drivetrain.tools.conform.page import page
from drivetrain.tools.conform.report import (
    OVER,
    ConformReport,
    area_table,
    case_table,
    detail_lines,
    document,
    quick_line,
)
from drivetrain.tools.conform.verdict import Outcome

QUICK_S = 120.0


def run(args: argparse.Namespace, key_variables: Sequence[str]) -> int:
    """Raises `InvalidSetting`. The key is in the first of these environment variables that is set."""
    cases = chosen([name for names in args.only for name in names], quick=args.quick)
    if args.list:
        output.line(output.table(*case_table(cases)))
        return 0
    client = Client(Address.parse(args.url), sendable(*key_in_environment(*key_variables)), args.timeout)
    report = ConformReport(
        url=str(client.address),
        model=args.model or "",
        began=datetime.now(UTC).isoformat(timespec="seconds"),
        version=__version__,
        quick_of=len(ALL) if args.quick else None,
    )
    try:
        with progress_line(quiet=args.quiet) as progress:

            async def run_cases() -> None:
                until = time.monotonic() + QUICK_S
                report.model = await runner.find_model(client, args.model, key_variables)
                within_s = max(0.0, until - time.monotonic()) if args.quick else None
                await runner.run(client, report.model, cases, report, progress, within_s=within_s)

            run_cancellable(run_cases)
    finally:  # also what was found before an interrupt
        if report.results:
            _print(args, report)
    was_asked = any(result.reason != OVER for result in report.results)
    return FAILED if report.of(Outcome.FAIL) or not was_asked else 0


def chosen(only: Sequence[str], *, quick: bool = False) -> list[Case]:
    """Cases of these areas and with these ids, in the order of the report. `quick` leaves the quick ones, in theirs.

    Raises `InvalidSetting`.
    """
    known = {*Area, *(case.id for case in ALL)}
    for name in only:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise InvalidSetting(f"--only: there is no area or case {name!r}{hint} (see --list)")
    found = [case for case in ALL if not only or case.area in only or case.id in only]
    if not quick:
        return found
    if not (few := quick_of(found)):
        raise InvalidSetting(f"none of these cases is a quick one: leave out --quick or --only {','.join(only)}")
    return few


def _print(args: argparse.Namespace, report: ConformReport) -> None:
    about = ", ".join(f"{name} {value}" for name, value in report.about.items())
    output.line(f"{report.model} at {report.url}{f' ({about})' if about else ''}\n")
    output.line(output.table(*area_table(report)))
    lines = detail_lines(report)
    if lines:
        output.line("\n".join(lines))
    if report.quick_of is not None:
        output.line(f"\n{quick_line(report)}")
    if not report.complete:
        output.line("\nThe run was interrupted: cases are missing.")
    if args.json_file is not None:
        write_json(args.json_file, document(report))
    if args.report is not None:
        write_text(args.report, page(report, origin.facts()))

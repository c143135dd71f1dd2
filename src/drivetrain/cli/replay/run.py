"""`drivetrain replay` at work: open one worker after the other, replay its receipts, and print what came of them."""

from __future__ import annotations

import argparse
import asyncio
from datetime import UTC, datetime
from pathlib import Path

from drivetrain import __version__, assembly
from drivetrain.cli.flags import options
from drivetrain.cli.replay.plan import PlannedWorker, grouped, plan
from drivetrain.cli.replay.verifying import verify
from drivetrain.cli.terminal import origin, output
from drivetrain.cli.terminal.event_loop import run_cancellable
from drivetrain.cli.terminal.progress import ProgressLine, progress_line
from drivetrain.cli.terminal.report_files import write_json, write_text
from drivetrain.cli.terminal.values import plain
from drivetrain.core.errors import DrivetrainError, ModelNotFound
from drivetrain.engines.remote.address import is_url
from drivetrain.store.store import Store
from drivetrain.tools.replay.page import page
from drivetrain.tools.replay.reading import Entry, read_entries
from drivetrain.tools.replay.replaying import Terms, replay_all
from drivetrain.tools.replay.report import (
    ReplayedGroup,
    ReplayedOn,
    ReplayReport,
    detail_lines,
    document,
    exit_code,
    group_table,
    summary_line,
)
from drivetrain.tools.replay.verdict import Replayed, Verdict
from drivetrain.worker import sources
from drivetrain.worker.receipts import receipt_key

EXACT, COARSE = 0.001, 0.05
"""What counts as rounding: where numbers are float32, and where they are not."""


def run(args: argparse.Namespace) -> int:
    resolved = sources.read_settings(
        assembly.SETTINGS, args.model or "", options.given_settings(args), config=args.config
    )
    if args.explain:
        return options.explain(args, resolved)
    entries = read_entries(args.receipts, receipt_key(resolved.settings.receipt_key_file))
    if args.verify:
        return verify(entries, args.model)
    groups = grouped(entries)
    planned = plan(groups, args)
    unread = [_unread(group) for group in groups if group[0].receipt is None]
    found: list[ReplayedGroup] = []
    began = datetime.now(UTC).isoformat(timespec="seconds")
    num_groups = len(groups)
    try:
        with progress_line(quiet=args.quiet) as progress:

            async def replay_each() -> None:
                for one in planned:
                    found.extend(await _on(one, args, progress))

            run_cancellable(replay_each)
    finally:  # also what was found before an interrupt
        found += unread
        report = ReplayReport(
            version=__version__,
            began=began,
            num_top=args.top,
            groups=tuple(found),
            complete=len(found) == num_groups,
        )
        if report.groups:
            _print(report, args.json_file, args.report)
    return exit_code(report)


async def _on(planned: PlannedWorker, args: argparse.Namespace, progress: ProgressLine) -> list[ReplayedGroup]:
    settings = planned.resolved.settings
    try:
        if not planned.fetches:
            _refuse_absent(planned.model)
        parts = await asyncio.to_thread(assembly.open_parts, planned.model, settings, progress=progress)
        async with parts.opening(progress) as worker:
            known = worker.metadata
            exact = known.dtype == "float32" and settings.engine_options.get("quantize", "none") == "none"
            tolerance = args.tolerance if args.tolerance is not None else EXACT if exact else COARSE
            on = ReplayedOn(
                label=f"{known.engine} at {args.url}" if args.url is not None else known.engine,
                model=known.name,
                engine=known.engine,
                device=known.device,
                dtype=known.dtype,
                weights=parts.spec.weights,
                versions=dict(known.versions),
                tolerance=tolerance,
            )
            terms = Terms(min(args.top, worker.capabilities.limits.max_logprobs), tolerance)
            groups = planned.groups
            return [
                ReplayedGroup(on, tuple(await replay_all(worker, group, terms, on.label, progress))) for group in groups
            ]
    except DrivetrainError as exc:
        return [ReplayedGroup(None, tuple(_refused(entry, exc) for entry in group)) for group in planned.groups]


def _refuse_absent(model: str) -> None:
    """Raises `ModelNotFound`. A name in a receipt is nobody's wish to fetch anything."""
    if is_url(model):
        raise ModelNotFound("the receipt names a server; give it with --url")
    if model != "fake":
        Store().resolve(model)


def _refused(entry: Entry, error: DrivetrainError) -> Replayed:
    return Replayed(entry.where, entry.receipt, Verdict.REFUSED, error.message)


def _unread(group: tuple[Entry, ...]) -> ReplayedGroup:
    return ReplayedGroup(None, tuple(Replayed(each.where, None, Verdict.INVALID, each.fault) for each in group))


def _print(report: ReplayReport, json_file: Path | None, html_file: Path | None) -> None:
    output.line(output.table(*group_table(report)))
    if lines := detail_lines(report):
        output.line("\n".join(lines))
    output.line(f"\n{summary_line(report)}")
    if not report.complete:
        output.line("The run was not completed: receipts are missing.")
    if json_file is not None:
        write_json(json_file, plain(document(report)))
    if html_file is not None:
        write_text(html_file, page(report, origin.facts(), plain(document(report))))

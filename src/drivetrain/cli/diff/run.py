"""What `drivetrain diff` does: open one engine after the other, ask it, and print where they part."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path

from drivetrain import __version__, assembly, sync
from drivetrain.cli.diff.sides import PlannedSide, read_sides
from drivetrain.cli.terminal import output
from drivetrain.cli.terminal.boundary import FAILED
from drivetrain.cli.terminal.progress import ProgressLine, progress_line
from drivetrain.cli.terminal.report_files import write_json
from drivetrain.cli.terminal.values import plain
from drivetrain.tools.diff.prompts import BUILT_IN, read_prompts
from drivetrain.tools.diff.record import Questions, record
from drivetrain.tools.diff.report import DiffReport, Side, document, lines_of, note_lines, side_table


def run(args: argparse.Namespace) -> int:
    planned = read_sides(args)
    if args.explain:
        for side in planned:
            output.line(f"{side.label}\n{side.resolved.explain()}")
        return 0
    prompts = BUILT_IN if args.prompts is None else read_prompts(args.prompts)
    questions = Questions(prompts=prompts, num_tokens=args.tokens, num_top=args.top, chat=args.chat)
    began = datetime.now(UTC).isoformat(timespec="seconds")
    asked: list[Side] = []
    try:
        with progress_line(quiet=args.quiet) as progress:
            _ask(planned, questions, asked, progress)
    finally:  # also of what was found before an interrupt or a failure
        report = DiffReport(
            version=__version__,
            began=began,
            questions=questions,
            tolerance=args.tolerance,
            sides=tuple(asked),
            complete=len(asked) == len(planned),
        )
        if len(asked) > 1:
            _tell(report, args.json_file)
    return 0 if all(pair.summary.is_same for pair in report.pairs()) else FAILED


def _ask(planned: list[PlannedSide], questions: Questions, asked: list[Side], progress: ProgressLine) -> None:
    """All weights are found before the first engine is loaded; no two are loaded at once."""
    parts = [assembly.open_parts(side.model, side.resolved.settings, progress=progress) for side in planned]
    for side, found in zip(planned, parts, strict=True):
        asked.append(_asked(side, found, questions, progress))


def _asked(side: PlannedSide, parts: assembly.Parts, questions: Questions, progress: ProgressLine) -> Side:
    with sync.Worker(parts.opening(progress)) as worker:
        answers = record(worker, questions, side.label, progress)
        known = worker.metadata
        return Side(
            label=side.label,
            engine=known.engine,
            model=side.model,
            weights=parts.spec.format,
            dtype=known.dtype,
            device=known.device,
            settings=plain(side.changed),
            versions=dict(known.versions),
            notes=known.notes,
            answers=answers,
        )


def _tell(report: DiffReport, json_file: Path | None) -> None:
    output.line("\n".join([output.table(*side_table(report)), *note_lines(report)]))
    for pair in report.pairs():
        output.line("\n".join(lines_of(pair, report)))
    if not report.complete:
        output.line("\nNot all engines were asked.")
    if json_file is not None:
        write_json(json_file, plain(document(report)))

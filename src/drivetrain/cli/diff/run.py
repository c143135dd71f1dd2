"""`drivetrain diff` at work: open one engine after the other, ask it, and print where they diverge."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path

from drivetrain import __version__, assembly, sync
from drivetrain.cli.diff.sides import PlannedEngine, read_sides
from drivetrain.cli.flags import options
from drivetrain.cli.terminal import origin, output
from drivetrain.cli.terminal.boundary import FAILED
from drivetrain.cli.terminal.progress import ProgressLine, progress_line
from drivetrain.cli.terminal.report_files import write_json, write_text
from drivetrain.cli.terminal.values import plain
from drivetrain.core.request import GenerateRequest
from drivetrain.tools.diff.page import page
from drivetrain.tools.diff.prompts import BUILT_IN, read_prompts
from drivetrain.tools.diff.record import Questions, record
from drivetrain.tools.diff.report import ComparedSide, DiffReport, document, lines_of, note_lines, side_table


def run(args: argparse.Namespace) -> int:
    planned = read_sides(args)
    if args.explain:
        for side in planned:
            output.line(f"{side.label}\n{side.resolved.explain()}")
        return 0
    prompts = BUILT_IN if args.prompts is None else read_prompts(args.prompts)
    tools = GenerateRequest(tools=args.tools).tools or ()
    questions = Questions(prompts=prompts, num_tokens=args.tokens, num_top=args.top, chat=args.chat, tools=tools)
    began = datetime.now(UTC).isoformat(timespec="seconds")
    sides: list[ComparedSide] = []
    try:
        with progress_line(quiet=args.quiet) as progress:
            # All weights are found before the first engine is loaded, and only one engine is loaded at a time.
            parts = [assembly.open_parts(one.model, one.resolved.settings, progress=progress) for one in planned]
            for one, found in zip(planned, parts, strict=True):
                sides.append(_ask(one, found, questions, progress))
    finally:  # also what was found before an interrupt or a failure
        report = DiffReport(
            version=__version__,
            began=began,
            questions=questions,
            tolerance=args.tolerance,
            sides=tuple(sides),
            complete=len(sides) == len(planned),
        )
        if len(sides) > 1:
            _print(report, args.json_file, args.report)
    return 0 if all(pair.summary.is_same for pair in report.pairs()) else FAILED


def _ask(planned: PlannedEngine, parts: assembly.Parts, questions: Questions, progress: ProgressLine) -> ComparedSide:
    with sync.Worker(parts.opening(progress)) as worker:
        answers = record(worker, questions, planned.label, progress)
        known = worker.metadata
        return ComparedSide(
            label=planned.label,
            engine=known.engine,
            model=planned.model,
            weights=parts.spec.format,
            dtype=known.dtype,
            device=known.device,
            settings=plain(options.changed(planned.resolved)),
            versions=dict(known.versions),
            notes=known.notes,
            answer_form=known.tool_form if questions.tools else known.answer_form,
            answers=answers,
        )


def _print(report: DiffReport, json_file: Path | None, html_file: Path | None) -> None:
    output.line("\n".join([output.table(*side_table(report)), *note_lines(report)]))
    for pair in report.pairs():
        output.line("\n".join(lines_of(pair, report)))
    if not report.complete:
        output.line("\nThe run was not completed: not all engines were asked.")
    if json_file is not None:
        write_json(json_file, plain(document(report)))
    if html_file is not None:
        write_text(html_file, page(report, origin.facts(), plain(document(report))))

"""`drivetrain bench` at work: open the sides, measure, print. An interrupt ends the measuring, not the printing."""

from __future__ import annotations

import argparse
import contextlib
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from drivetrain.cli.bench.options import MAX_REQUESTS, rates, stream_counts
from drivetrain.cli.bench.sides import LocalSide, UrlSide, find, name_apart, opened, read_sides
from drivetrain.cli.terminal import origin, output
from drivetrain.cli.terminal.event_loop import run_cancellable
from drivetrain.cli.terminal.progress import ProgressLine, progress_line
from drivetrain.cli.terminal.report_files import write_json, write_text
from drivetrain.cli.terminal.values import plain
from drivetrain.core.errors import InvalidSetting
from drivetrain.telemetry.memory import settle_heap
from drivetrain.tools.bench import tables
from drivetrain.tools.bench.ceilings import Ceilings, NotMeasured, measure
from drivetrain.tools.bench.chart import chart
from drivetrain.tools.bench.page import page
from drivetrain.tools.bench.report import BenchReport, NamedTarget, make_level, notes
from drivetrain.tools.bench.session import BenchSide, Session
from drivetrain.tools.bench.target import Target
from drivetrain.tools.bench.workload import Closed, Level, Open, Workload, arrivals


@dataclass(slots=True)
class Measured:
    """The results so far."""

    began: str
    targets: list[Target] = field(default_factory=list)
    session: Session | None = None
    ceilings: Ceilings | NotMeasured = field(default_factory=lambda: NotMeasured("left out"))
    complete: bool = False


def run(args: argparse.Namespace) -> int:
    workload = _workload(args)
    levels = _levels(args, workload.seed)
    streams = max((level.streams for level in levels if isinstance(level, Closed)), default=0)
    sides = read_sides(args, max_streams=streams)
    if args.explain:
        return _explain(sides)
    measured = Measured(began=datetime.now(UTC).isoformat(timespec="seconds"))
    try:
        with progress_line(quiet=args.quiet) as progress:
            found = [find(side, progress) for side in sides]

            async def main() -> None:
                async with contextlib.AsyncExitStack() as stack:
                    for side in found:
                        measured.targets.append(await stack.enter_async_context(opened(side, progress)))
                    name_apart(measured.targets, args.against)
                    await _measure(measured, workload, levels, progress, ceilings=args.ceilings)

            run_cancellable(main)
    finally:  # also what was measured before an interrupt or a failure
        if measured.session is not None and any(any(played.rounds) for played in measured.session.played):
            _print(args, _report(measured, workload))
    return 0


async def _measure(
    measured: Measured, workload: Workload, levels: list[Level], progress: ProgressLine, *, ceilings: bool
) -> None:
    settle_heap()  # as serve does
    addresses = [target.facts.stated.get("url") for target in measured.targets]
    shared = len(addresses) == 2 and addresses[0] is not None and addresses[0] == addresses[1]
    sides = [BenchSide(target, salt=str(i) if shared else "") for i, target in enumerate(measured.targets)]
    session = Session(sides, levels, workload)
    progress("asking for a first token", None)
    await session.prepare()
    if ceilings:
        progress("measuring the ceilings", None)
        measured.ceilings = await _ceilings(measured.targets)
    measured.session = session
    await session.run(progress)
    if isinstance(measured.ceilings, Ceilings):
        progress("measuring the ceilings again", None)
        again = await _ceilings(measured.targets)
        measured.ceilings = measured.ceilings.best_of(again) if isinstance(again, Ceilings) else measured.ceilings
    measured.complete = True


async def _ceilings(targets: list[Target]) -> Ceilings | NotMeasured:
    """Of the device of the first target with known weights."""
    facts = next((target.facts for target in targets if target.facts.weights is not None), None)
    if facts is None:
        return NotMeasured("the weights of no target are known here")
    device = facts.device or "cpu"
    if device == "cpu":
        return await measure()
    if device.startswith("cuda"):
        return await measure(device, facts.dtype if facts.dtype in {"bfloat16", "float16"} else "float32")
    return NotMeasured(f"they cannot be measured on {device}")


def _workload(args: argparse.Namespace) -> Workload:
    return Workload(
        prompt_tokens=args.prompt_tokens,
        max_tokens=args.max_tokens,
        shared_prefix=args.shared_prefix,
        seed=random.SystemRandom().randrange(10**6) if args.seed is None else args.seed,
        rounds=args.rounds or (5 if args.rate is None else 1),
        timeout_s=args.timeout_s,
    )


def _levels(args: argparse.Namespace, seed: int) -> list[Level]:
    if args.rate is None:
        return [Closed(streams, args.requests or 1) for streams in stream_counts(args.streams or "1,4,16")]
    found: list[Level] = []
    for rate in rates(args.rate):
        duration_s = None if args.requests else args.duration or 30.0
        if duration_s is not None and rate * duration_s > MAX_REQUESTS:
            raise InvalidSetting(f"--rate and --duration come to more than {MAX_REQUESTS} requests a round")
        found.append(arrivals(rate, seed, count=args.requests, duration_s=duration_s))
    return found


def _explain(sides: list[LocalSide | UrlSide]) -> int:
    for side in sides:
        if isinstance(side, LocalSide):
            output.line(f"{side.model}\n{side.resolved.explain()}")
        else:
            output.line(f"{side.address}\nmodel  {side.model!r}")
    return 0


# Output


def _report(measured: Measured, workload: Workload) -> BenchReport:
    assert measured.session is not None
    targets = [NamedTarget(label=target.label, facts=target.facts) for target in measured.targets]
    played = [played for played in measured.session.played if any(played.rounds)]
    levels = [make_level(one, targets, measured.ceilings, workload) for one in played]
    return BenchReport(
        command=origin.command(),
        began=measured.began,
        machine=origin.machine(),
        workload=workload,
        targets=tuple(targets),
        ceilings=measured.ceilings,
        levels=tuple(levels),
        notes=tuple(notes(levels, targets, workload)),
        complete=measured.complete,
    )


def _print(args: argparse.Namespace, report: BenchReport) -> None:
    output.line(output.table(*tables.figures_table(report)))
    against = tables.against_table(report)
    if against[1]:
        output.line("\n" + output.table(*against))
    output.line("\n" + "\n".join([*tables.legend(report), *tables.sentences(report)]))
    if args.json_file is not None:
        write_json(args.json_file, document(report))
    if args.report is not None:
        write_text(args.report, page(report, origin.facts_of(report.machine), document(report)))
    if args.markdown is not None:
        write_text(args.markdown, tables.markdown(report))
    if args.chart is not None:
        write_text(args.chart, chart(report))


def document(report: BenchReport) -> dict[str, Any]:
    """The report as plain data. An open loop's arrivals are left out: the seed reproduces them."""
    found: dict[str, Any] = plain(report)
    for level, made in zip(report.levels, found["levels"], strict=True):
        if isinstance(level.level, Open):
            made["level"] = {"rate": level.level.rate, "requests": level.level.num_requests}
    return found

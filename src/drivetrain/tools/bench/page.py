"""A report as an HTML page: the result in one line, charts, the tables, and what qualifies them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from drivetrain.tools.bench import chart, tables
from drivetrain.tools.bench.report import BenchReport, LevelReport
from drivetrain.tools.bench.tables import number
from drivetrain.tools.reports import charts, parts
from drivetrain.tools.reports.histograms import distribution
from drivetrain.tools.reports.markup import Content, Html
from drivetrain.tools.reports.page import Head, page_of
from drivetrain.tools.reports.parts import Tone

CURVE = 3
"""From so many levels on, throughput is a line and not bars."""


def page(report: BenchReport, origin: Mapping[str, str], data: Mapping[str, Any]) -> str:
    """`origin` is the machine and the versions; `data` is the report as plain data."""
    names = [target.label for target in report.targets]
    models = " and ".join(dict.fromkeys(target.facts.model for target in report.targets))
    work = report.workload
    load = f"prompts of about {work.prompt_tokens} tokens, {work.max_tokens} new tokens, greedy, seed {work.seed}"
    facts: list[tuple[str, Content]] = [("Model", models), ("Load", load), ("Began", parts.moment(report.began))]
    mark, tone = _mark(report)
    head = Head(
        tool="drivetrain bench",
        title=" against ".join(names) if len(names) > 1 else f"{models} on {names[0]}",
        mark=mark,
        tone=tone,
        verdict=_verdict(report),
        facts=facts,
        origin={**origin, "Command": report.command},
    )
    return page_of(head, _sections(report), data)


def _mark(report: BenchReport) -> tuple[str, Tone]:
    if not report.complete:
        return "not completed", Tone.WARN
    if _failed(report):
        return "with failures", Tone.WARN
    return "compared" if len(report.targets) == 2 else "measured", Tone.GOOD


def _failed(report: BenchReport) -> int:
    return sum(sum(side.failures.values()) for level in report.levels for side in level.sides)


def _verdict(report: BenchReport) -> str:
    failed = f" {_failed(report)} requests failed." if _failed(report) else ""
    cut = "" if report.complete else " The run was not completed."
    return f"{_comparison(report) if len(report.targets) == 2 else _best(report)}{failed}{cut}"


def _comparison(report: BenchReport) -> str:
    found = [(level.against.throughput_ratio.median, level.label) for level in report.levels if level.against]
    ours, theirs = (target.label for target in report.targets)
    if not found:
        return f"{ours} and {theirs} cannot be compared: no pair of rounds was answered by both."
    ratios = ", ".join(f"{ratio:.2f} times with {label}" for ratio, label in found)
    return f"Tokens per second of {ours} over {theirs}: {ratios}."


def _best(report: BenchReport) -> str:
    found = [(made.median, level) for level in report.levels if (made := level.sides[0].tokens_per_s) and made.median]
    if not found:
        return "Nothing was answered."
    speed, level = max(found, key=lambda one: one[0])
    first = _ms(level.sides[0].first_token_s.p50)
    return f"{number(speed)} tokens per second with {level.label}, the first token after {first} (medians)."


def _ms(seconds: float | None) -> str:
    return tables.NONE if seconds is None else f"{number(1000 * seconds)} ms"


def _sections(report: BenchReport) -> Iterator[Html]:
    throughput = chart.throughput(report)
    draw = charts.lines if len(report.levels) >= CURVE else charts.bars
    yield parts.section(
        "Result",
        parts.tiles(_ratios(report) if len(report.targets) == 2 else _figures(report.levels)),
        parts.beside(draw(throughput), charts.bars(chart.first_token(report))),
        _table("Each side at each load", tables.figures_table(report)),
        _table("The first side over the second, by pairs of rounds", tables.against_table(report)),
        *map(parts.note, tables.legend(report)),
    )
    spread = [distribution(made(report)) for made in (chart.first_token_times, chart.between_times)]
    if any(spread):
        yield parts.section("How the times are distributed", parts.beside(*spread))
    yield parts.section("What was measured", parts.bullets(tables.sentences(report)))
    yield parts.section("Rounds", parts.fold("Each measured round", _table("Each measured round", _rounds(report))))


def _figures(levels: Sequence[LevelReport]) -> Iterator[tuple[str, str, str]]:
    """Of one side: the times at the first load, which is the least one."""
    sides = [level.sides[0] for level in levels]
    speeds = [speed.median for side in sides if (speed := side.tokens_per_s)]
    yield "Tokens per second", number(max(speeds, default=None)), "the most, median round"
    for name, found in (("First token", sides[0].first_token_s), ("Between events", sides[0].between_events_s)):
        yield name, _ms(found.p50), f"median with {levels[0].label}; 99 % within {_ms(found.p99)}"
    failed = sum(sum(side.failures.values()) for side in sides)
    yield "Failed", f"{failed:,}", f"of {failed + sum(side.answers for side in sides):,} requests"


def _ratios(report: BenchReport) -> Iterator[tuple[str, str, str]]:
    for level in report.levels:
        if level.against is not None:
            ratio = level.against.throughput_ratio
            reach = f"{ratio.low:.2f} to {ratio.high:.2f}; pairs of rounds: {level.against.pairs}"
            yield f"Throughput with {level.label}", f"{ratio.median:.2f} ×", reach


def _table(caption: str, table: tables.Table) -> Html | None:
    head, rows = table
    return parts.table(caption, head, rows, numbers=range(2, len(head)), wide=True) if rows else None


def _rounds(report: BenchReport) -> tables.Table:
    head = ["load", "target", "round", "tokens/s", "requests/s", "first token ms", "decoding tokens/s", "s", "failed"]
    rows = [
        [
            level.label,
            side.target,
            f"{i}{'' if one.complete else ' (interrupted)'}",
            number(one.tokens_per_s),
            number(one.requests_per_s),
            number(None if one.first_token_s is None else 1000 * one.first_token_s),
            number(one.decode_tokens_per_s),
            number(one.wall_s),
            str(one.failed),
        ]
        for level in report.levels
        for side in level.sides
        for i, one in enumerate(side.rounds, 1)
    ]
    return head, rows

"""A report as charts: throughput and first token by load, and how the times are distributed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from drivetrain.tools.bench.report import BenchReport, Figures
from drivetrain.tools.bench.workload import Level, Open
from drivetrain.tools.reports.charts import Chart, Point, Series
from drivetrain.tools.reports.histograms import Distribution
from drivetrain.tools.reports.picture import picture


def chart(report: BenchReport) -> str:
    """Throughput and first token, as an SVG file."""
    work = report.workload
    model = " and ".join(dict.fromkeys(target.facts.model for target in report.targets))
    under = f"{model}: prompts of about {work.prompt_tokens} tokens, {work.max_tokens} new tokens"
    names = " against ".join(target.label for target in report.targets)
    return picture((throughput(report), first_token(report)), names, under)


def throughput(report: BenchReport) -> Chart:
    return _by_load(report, "Tokens per second", "the median round, and from the lowest to the highest", _speed)


def first_token(report: BenchReport) -> Chart:
    return _by_load(report, "First token, ms", "median, and up to the 99th percentile", _first)


def first_token_times(report: BenchReport) -> Distribution:
    return _times(report, "First token, all answers", lambda side: side.first_token_values_s)


def between_times(report: BenchReport) -> Distribution:
    return _times(report, "Between events, all answers", lambda side: side.between_events_values_s)


def _by_load(report: BenchReport, title: str, about: str, point: Callable[[Figures], Point | None]) -> Chart:
    return Chart(
        title=title,
        about=about,
        axis="requests per second" if _is_open(report) else "concurrent streams",
        labels=[_load(level.level) for level in report.levels],
        series=[
            Series(target.label, [point(level.sides[i]) for level in report.levels])
            for i, target in enumerate(report.targets)
        ],
    )


def _times(report: BenchReport, title: str, values: Callable[[Figures], Sequence[float]]) -> Distribution:
    return Distribution(
        title=title,
        about="how often each time occurred; the line is the median",
        axis="ms",
        labels=[level.label for level in report.levels],
        names=[target.label for target in report.targets],
        values=[[[1000 * value for value in values(side)] for side in level.sides] for level in report.levels],
    )


def _is_open(report: BenchReport) -> bool:
    return bool(report.levels) and isinstance(report.levels[0].level, Open)


def _load(level: Level) -> str:
    return f"{level.rate:g}" if isinstance(level, Open) else str(level.streams)


def _speed(side: Figures) -> Point | None:
    found = side.tokens_per_s
    return None if found is None or not side.answers else Point(found.median, found.low, found.high)


def _first(side: Figures) -> Point | None:
    found = side.first_token_s
    if found.p50 is None or found.p99 is None:
        return None
    return Point(found.p50 * 1000, found.p50 * 1000, found.p99 * 1000)

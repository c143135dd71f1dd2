"""A report as an SVG chart: bars for each level, each with a line from the lowest to the highest value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

from drivetrain.tools.bench.report import BenchReport, Figures
from drivetrain.tools.bench.workload import Level, Open

WIDTH, HEIGHT = 960, 440
TOP, BOTTOM = 108, 84
COLOURS = ("#2f6fa7", "#d9822b")
INK, FAINT = "#1c2733", "#d5dbe1"


@dataclass(frozen=True, slots=True)
class Bar:
    """None if nothing was measured."""

    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Panel:
    """`groups` are the levels, each with one bar per target."""

    title: str
    axis: str
    labels: Sequence[str]
    groups: Sequence[Sequence[Bar]]
    left: float
    width: float


def chart(report: BenchReport) -> str:
    labels = [_load(level.level) for level in report.levels]
    axis = "requests per second" if report.levels and isinstance(report.levels[0].level, Open) else "concurrent streams"
    speed = [[_speed(side) for side in level.sides] for level in report.levels]
    first = [[_first(side) for side in level.sides] for level in report.levels]
    half = WIDTH / 2
    panels = (
        Panel("Tokens per second (median round, lowest to highest)", axis, labels, speed, 64, half - 88),
        Panel("First token, ms (median, up to the 99th percentile)", axis, labels, first, half + 64, half - 88),
    )
    names = [target.label for target in report.targets]
    model = " and ".join(dict.fromkeys(target.facts.model for target in report.targets))
    work = report.workload
    under = f"{model}: prompts of about {work.prompt_tokens} tokens, {work.max_tokens} new tokens"
    body = [_text(24, 32, " against ".join(names), size=18, weight="bold"), _text(24, 52, under), *_legend(names)]
    for panel in panels:
        body += _panel(panel)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="sans-serif" role="img" aria-label={quoteattr(_printable(under))}>'
    )
    return "\n".join([head, f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>', *body, "</svg>", ""])


def ticks(highest: float, wanted: int = 5) -> list[float]:
    """From 0 in round steps up to the highest value or just beyond."""
    if highest <= 0:
        return [0.0, 1.0]
    rough = highest / wanted
    power = 10 ** math.floor(math.log10(rough))
    step = next(step * power for step in (1, 2, 5, 10) if step * power >= rough * 0.999)
    return [i * step for i in range(math.ceil(highest / step * 0.999) + 1)]


def _load(level: Level) -> str:
    return f"{level.rate:g}" if isinstance(level, Open) else str(level.streams)


def _speed(side: Figures) -> Bar:
    found = side.tokens_per_s
    return Bar(None, None, None) if found is None else Bar(found.median, found.low, found.high)


def _first(side: Figures) -> Bar:
    found = side.first_token_s
    if found.p50 is None or found.p99 is None:
        return Bar(None, None, None)
    return Bar(found.p50 * 1000, found.p50 * 1000, found.p99 * 1000)


def _panel(panel: Panel) -> list[str]:
    bottom, height = HEIGHT - BOTTOM, HEIGHT - BOTTOM - TOP
    highest = max((bar.high for group in panel.groups for bar in group if bar.high is not None), default=0.0)
    marks = ticks(highest)
    scale = height / marks[-1]
    drawn = [_text(panel.left, TOP - 24, panel.title, weight="bold")]
    for mark in marks:
        y = bottom - mark * scale
        drawn.append(_line(panel.left, y, panel.left + panel.width, y, FAINT if mark else INK))
        drawn.append(_text(panel.left - 8, y + 4, f"{mark:g}", anchor="end"))
    drawn.append(_text(panel.left + panel.width / 2, bottom + 40, panel.axis, anchor="middle"))
    room = panel.width / max(len(panel.groups), 1)
    for i, (label, group) in enumerate(zip(panel.labels, panel.groups, strict=True)):
        middle = panel.left + room * (i + 0.5)
        drawn.append(_text(middle, bottom + 20, label, anchor="middle"))
        thick = min(46.0, room * 0.8 / max(len(group), 1))
        for j, bar in enumerate(group):
            drawn += _bar(bar, middle + (j - len(group) / 2) * thick, thick, bottom, scale, COLOURS[j % 2])
    return drawn


def _bar(bar: Bar, left: float, thick: float, bottom: float, scale: float, colour: str) -> list[str]:
    middle = left + thick / 2
    if bar.value is None or bar.low is None or bar.high is None:
        return [_text(middle, bottom - 6, "none", anchor="middle")]
    top, high = bottom - bar.value * scale, bottom - bar.high * scale
    return [
        f'<rect x="{left + 1:.1f}" y="{top:.1f}" width="{thick - 2:.1f}" height="{bottom - top:.1f}" fill="{colour}"/>',
        _line(middle, bottom - bar.low * scale, middle, high, INK, width=1.5),
        _text(middle, high - 5, _short(bar.value), anchor="middle", size=11),
    ]


def _legend(names: Sequence[str]) -> list[str]:
    drawn, x = [], 24.0
    y = HEIGHT - 14
    for name, colour in zip(names, COLOURS, strict=False):
        drawn.append(f'<rect x="{x:.0f}" y="{y - 10}" width="12" height="12" fill="{colour}"/>')
        drawn.append(_text(x + 18, y, name))
        x += 46 + 7 * len(name)
    return drawn


def _text(x: float, y: float, text: str, *, size: int = 12, anchor: str = "start", weight: str = "normal") -> str:
    shown = escape(_printable(text[:110]))
    style = f'font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" fill="{INK}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{shown}</text>'


def _printable(text: str) -> str:
    """XML has no control characters, and the name of a model comes from a server."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1.0) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width:g}"/>'


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"

"""Charts as SVG: shapes in percent and type in pixels, so that a chart fits any width and stays readable."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from drivetrain.tools.reports.axes import Scale, between, from_zero, short
from drivetrain.tools.reports.markup import Attribute, Html, element
from drivetrain.tools.reports.page import style

LEFT, WIDTH = 12.0, 86.0
"""Of the field in which values are drawn, in percent; the names of the marks stand left of it."""

HEIGHT, ABOVE, BELOW, LEGEND = 180, 16, 42, 19
BINS, STRIP, UP = 48, 18, 36
"""Of a histogram: the strip that names it, and the height of one side."""

FEW = 6
"""So many bars have their values written on them."""

SHOWN_NAME = 44
"""Characters, which fit on a phone; tables have the whole names."""


@dataclass(frozen=True, slots=True)
class Point:
    """A value, and from where to where it was seen."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Series:
    """One side: a point for each label, None if nothing was measured."""

    name: str
    points: Sequence[Point | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """`about` says what is drawn, `axis` what the labels are. At most two series."""

    title: str
    about: str
    axis: str
    labels: Sequence[str]
    series: Sequence[Series]


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """For each label the measured values of each side, which `names` names. At most two sides."""

    title: str
    about: str
    axis: str
    labels: Sequence[str]
    names: Sequence[str]
    values: Sequence[Sequence[Sequence[float]]]


def bars(chart: Chart) -> Html:
    return _figure(chart.title, chart.about, _plot(chart, _bars), _height(chart), _said(chart))


def lines(chart: Chart) -> Html:
    return _figure(chart.title, chart.about, _plot(chart, _lines), _height(chart), _said(chart))


def distribution(shown: Distribution) -> Html | None:
    """A histogram for each label; the second side's hangs below the first one's. None without values."""
    values = [value for row in shown.values for side in row for value in side if value > 0]
    if not values:
        return None
    scale = between(min(values), max(values))
    tall, offset = STRIP + UP * len(shown.names) + 6, _legend_height(shown.names)
    drawn = [*_legend(shown.names)]
    for i, (label, row) in enumerate(zip(shown.labels, shown.values, strict=True)):
        drawn.append(_text("0", offset + i * tall + 13, label, class_="row"))
        drawn.append(_field(offset + i * tall, tall, _histograms(row, scale), left=0.0, width=100.0))
    height = offset + tall * len(shown.labels)
    marks = [_text(f"{at:.6g}%", 18, short(mark), anchor=_anchor(at)) for at, mark in _apart(scale)]
    drawn.append(_field(height, BELOW, [*marks, _text("50%", 36, shown.axis, anchor="middle")], left=2.0, width=96.0))
    said = "; ".join(
        f"{label}, {name}: median {short(_median(side))}"
        for label, row in zip(shown.labels, shown.values, strict=True)
        for name, side in zip(shown.names, row, strict=True)
        if side
    )
    return _figure(shown.title, shown.about, drawn, height + BELOW, f"{shown.axis}: {said}")


def stack(parts: Iterable[tuple[str, int, str]], said: str) -> Html:
    """One bar of several parts: the class of each, its share and its name."""
    given = [(kind, count, name) for kind, count, name in parts if count > 0]
    total, at, drawn = sum(count for _, count, _ in given), 0.0, []
    for kind, count, name in given:
        share = 100 * count / total
        rect = {"x": f"{at:.6g}%", "width": f"{share:.6g}%", "height": "10"}
        drawn.append(element("rect", element("title", f"{name}: {count}"), class_=kind, **rect))
        at += share
    return element("svg", *drawn, class_="meter", role="img", aria_label=said)


def meter(share: float, kind: str, said: str) -> Html:
    """How much of the whole, from 0 to 1."""
    width = f"{100 * min(1.0, max(0.0, share)):.6g}%"
    track = element("rect", class_="track", width="100%", height="10")
    bar = element("rect", class_=kind, width=width, height="10", rx="5")
    return element("svg", track, bar, class_="meter", role="img", aria_label=said)


def picture(charts: Sequence[Chart], title: str, under: str) -> str:
    """Bars side by side as an SVG file, for a document or a slide: always light, and without a style of its viewer."""
    height, width = max(map(_height, charts)) + 130, 480 * len(charts)
    drawn = [_text("24", 34, title, class_="title", most=80), _text("24", 54, under, most=120)]
    for i, chart in enumerate(charts):
        body = [_text("0", 18, chart.title, class_="row"), _text("0", 34, chart.about)]
        body.append(_field(46, _height(chart), _plot(chart, _bars), left=0.0, width=100.0))
        drawn.append(element("svg", *body, x=str(24 + 480 * i), y="76", width="432", overflow="visible"))
    ground = element("rect", width="100%", height="100%", class_="ground")
    size = {"xmlns": "http://www.w3.org/2000/svg", "width": str(width), "height": str(height)}
    root = element("svg", element("style", Html(_light_style())), ground, *drawn, role="img", aria_label=under, **size)
    return f"{root}\n"


# What is drawn

Draw: TypeAlias = Callable[[Chart, Scale], Iterator[Html]]


def _plot(chart: Chart, draw: Draw) -> list[Html]:
    highest = max((point.high for one in chart.series for point in one.points if point is not None), default=0.0)
    scale, top = from_zero(highest), _legend_height([one.name for one in chart.series])
    field = [*_grid(scale), *_labels(chart), *draw(chart, scale)]
    return [*_legend([one.name for one in chart.series]), _field(top + ABOVE, HEIGHT, field)]


def _bars(chart: Chart, scale: Scale) -> Iterator[Html]:
    room, sides = 100 / max(1, len(chart.labels)), max(1, len(chart.series))
    thick = min(12.0, room * 0.76 / sides)
    few = sides * len(chart.labels) <= FEW
    for i, label in enumerate(chart.labels):
        for j, one in enumerate(chart.series):
            left = room * (i + 0.5) + (j - sides / 2) * thick
            middle, point = f"{left + thick / 2:.6g}%", one.points[i]
            if point is None:
                yield _text(middle, HEIGHT - 6, "none", anchor="middle")
                continue
            top = _y(scale, point.value)
            box: dict[str, Attribute] = {
                "x": f"{left + thick * 0.05:.6g}%",
                "width": f"{thick * 0.9:.6g}%",
                "y": top,
                "height": HEIGHT - top,
            }
            yield element("rect", element("title", _tip(one, label, point)), class_=f"side-{j}", rx="2", **box)
            if point.high > point.low:
                yield _line(middle, _y(scale, point.low), middle, _y(scale, point.high), "reach")
            if few:
                yield _text(middle, _y(scale, point.high) - 5, short(point.value), anchor="middle", class_="value")


def _lines(chart: Chart, scale: Scale) -> Iterator[Html]:
    room = 100 / max(1, len(chart.labels))
    for j, one in enumerate(chart.series):
        at = [f"{room * (i + 0.5):.6g}%" for i in range(len(one.points))]
        found = list(zip(at, one.points, strict=True))
        for (x1, before), (x2, after) in itertools.pairwise(found):
            if before is not None and after is not None:
                yield _line(x1, _y(scale, before.value), x2, _y(scale, after.value), f"side-{j}")
        for label, (x, point) in zip(chart.labels, found, strict=True):
            if point is not None:
                yield _line(x, _y(scale, point.low), x, _y(scale, point.high), f"side-{j} thin")
                tip = element("title", _tip(one, label, point))
                yield element("circle", tip, cx=x, cy=_y(scale, point.value), r="4", class_=f"side-{j}")


def _histograms(row: Sequence[Sequence[float]], scale: Scale) -> Iterator[Html]:
    base = float(STRIP + UP)
    yield _line("2%", base, "98%", base, "base")
    for j, side in enumerate(row):
        counts = [0] * BINS
        for value in side:
            counts[min(BINS - 1, int(scale.at(value) / 100 * BINS))] += 1
        for i, count in enumerate(counts):
            if count:
                high = max(1.5, (UP - 4) * count / max(counts))
                box: dict[str, Attribute] = {"x": f"{2 + 96 * i / BINS:.6g}%", "width": f"{96 / BINS * 0.86:.6g}%"}
                yield element("rect", class_=f"side-{j}", y=base + 1 if j else base - high, height=high, **box)
        if side:
            x = f"{2 + 0.96 * scale.at(_median(side)):.6g}%"
            yield _line(x, base, x, base + UP if j else float(STRIP), "reach")


def _grid(scale: Scale) -> Iterator[Html]:
    for mark in scale.marks:
        y = _y(scale, mark)
        yield _line("0", y, "100%", y, "grid" if mark else "base")
        yield _text("-8", y + 4, short(mark), anchor="end")


def _labels(chart: Chart) -> Iterator[Html]:
    room = 100 / max(1, len(chart.labels))
    every = max(1, -(-len(chart.labels) // 12))
    for i, label in list(enumerate(chart.labels))[::every]:
        yield _text(f"{room * (i + 0.5):.6g}%", HEIGHT + 18, label, anchor="middle")
    yield _text("50%", HEIGHT + 36, chart.axis, anchor="middle")


def _legend(names: Sequence[str]) -> Iterator[Html]:
    """Of one side alone the title says enough."""
    for i, name in enumerate(names if len(names) > 1 else ()):
        yield element("rect", class_=f"side-{i}", x="0", y=str(LEGEND * i + 2), width="11", height="11", rx="2")
        yield _text("18", LEGEND * i + 12, name)


# Pieces


def _figure(title: str, about: str, drawn: Iterable[Html], height: int, said: str) -> Html:
    svg = element("svg", *drawn, width="100%", height=str(height), role="img", aria_label=f"{title}. {said}")
    return element("figure", element("figcaption", title, element("small", about)), svg, class_="chart")


def _field(y: float, height: float, content: Iterable[Html], *, left: float = LEFT, width: float = WIDTH) -> Html:
    place = {"x": f"{left:.6g}%", "y": f"{y:.6g}", "width": f"{width:.6g}%", "height": f"{height:.6g}"}
    return element("svg", *content, overflow="visible", **place)


def _text(
    x: str, y: float, text: str, *, anchor: str | None = None, class_: str | None = None, most: int = SHOWN_NAME
) -> Html:
    shown = text if len(text) <= most else f"{text[: most - 1]}…"
    return element("text", shown, x=x, y=float(y), text_anchor=anchor, class_=class_)


def _line(x1: str, y1: float, x2: str, y2: float, kind: str) -> Html:
    return element("line", x1=x1, y1=float(y1), x2=x2, y2=float(y2), class_=kind)


def _y(scale: Scale, value: float) -> float:
    return HEIGHT * (1 - scale.at(value) / 100)


def _tip(one: Series, label: str, point: Point) -> str:
    reach = f" ({short(point.low)} to {short(point.high)})" if point.high > point.low else ""
    return f"{one.name}, {label}: {short(point.value)}{reach}"


def _said(chart: Chart) -> str:
    found = [
        f"{one.name}, {label}: {'none' if point is None else short(point.value)}"
        for one in chart.series
        for label, point in zip(chart.labels, one.points, strict=True)
    ]
    return f"{chart.about}; {'; '.join(found)}"


def _height(chart: Chart) -> int:
    return _legend_height([one.name for one in chart.series]) + ABOVE + HEIGHT + BELOW


def _legend_height(names: Sequence[str]) -> int:
    return LEGEND * len(names) if len(names) > 1 else 0


def _apart(scale: Scale) -> list[tuple[float, float]]:
    """Places and marks whose names do not run into each other."""
    kept: list[tuple[float, float]] = []
    for mark in scale.marks:
        if not kept or scale.at(mark) - kept[-1][0] >= 11:
            kept.append((scale.at(mark), mark))
    return kept


def _anchor(at: float) -> str:
    """So that the names of marks at the edges are not cut."""
    return "end" if at > 96 else "start" if at < 4 else "middle"


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _light_style() -> str:
    """The rules for SVG, with the light colours written out: not every viewer knows variables."""
    text = style()
    colours: dict[str, str] = dict(re.findall(r"(--[\w-]+): light-dark\((#\w+), #\w+\);", text))
    colours |= dict(re.findall(r"(--sans): ([^;]+);", text))
    rules = re.findall(r"^(?:svg|\.grid|\.base|\.reach|\.side-|rect\.side|line\.).*$", text, re.MULTILINE)
    own = (".ground { fill: var(--card); }", "svg text.title { fill: var(--ink); font-size: 18px; font-weight: bold; }")
    return re.sub(r"var\((--[\w-]+)\)", lambda found: colours[found[1]], "\n".join([*rules, *own])).replace('"', "'")

"""Charts of a value for each label: bars, or lines where there are many labels."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from drivetrain.tools.reports.axes import Scale, from_zero, short
from drivetrain.tools.reports.drawing import field, figure, legend, legend_height, line, text
from drivetrain.tools.reports.markup import Attribute, Html, element

HEIGHT, ABOVE, BELOW = 180, 16, 42
FEW = 6
"""So many bars have their values written on them."""


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


def bars(chart: Chart) -> Html:
    return figure(chart.title, chart.about, bars_of(chart), height_of(chart), _said(chart))


def lines(chart: Chart) -> Html:
    return figure(chart.title, chart.about, _plot(chart, _lines), height_of(chart), _said(chart))


def bars_of(chart: Chart) -> list[Html]:
    """Without the figure around them, for an SVG that holds more."""
    return _plot(chart, _bars)


def height_of(chart: Chart) -> int:
    return legend_height([one.name for one in chart.series]) + ABOVE + HEIGHT + BELOW


# What is drawn

Draw: TypeAlias = Callable[[Chart, Scale], Iterator[Html]]


def _plot(chart: Chart, draw: Draw) -> list[Html]:
    highest = max((point.high for one in chart.series for point in one.points if point is not None), default=0.0)
    scale, top = from_zero(highest), legend_height([one.name for one in chart.series])
    inside = [*_grid(scale), *_labels(chart), *draw(chart, scale)]
    return [*legend([one.name for one in chart.series]), field(top + ABOVE, HEIGHT, inside)]


def _bars(chart: Chart, scale: Scale) -> Iterator[Html]:
    room, sides = 100 / max(1, len(chart.labels)), max(1, len(chart.series))
    thick = min(12.0, room * 0.76 / sides)
    few = sides * len(chart.labels) <= FEW
    for i, label in enumerate(chart.labels):
        for j, one in enumerate(chart.series):
            left = room * (i + 0.5) + (j - sides / 2) * thick
            middle, point = f"{left + thick / 2:.6g}%", one.points[i]
            if point is None:
                yield text(middle, HEIGHT - 6, "none", anchor="middle")
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
                yield line(middle, _y(scale, point.low), middle, _y(scale, point.high), "reach")
            if few:
                yield text(middle, _y(scale, point.high) - 5, short(point.value), anchor="middle", class_="value")


def _lines(chart: Chart, scale: Scale) -> Iterator[Html]:
    room = 100 / max(1, len(chart.labels))
    for j, one in enumerate(chart.series):
        at = [f"{room * (i + 0.5):.6g}%" for i in range(len(one.points))]
        found = list(zip(at, one.points, strict=True))
        for (x1, before), (x2, after) in itertools.pairwise(found):
            if before is not None and after is not None:
                yield line(x1, _y(scale, before.value), x2, _y(scale, after.value), f"side-{j}")
        for label, (x, point) in zip(chart.labels, found, strict=True):
            if point is not None:
                yield line(x, _y(scale, point.low), x, _y(scale, point.high), f"side-{j} thin")
                tip = element("title", _tip(one, label, point))
                yield element("circle", tip, cx=x, cy=_y(scale, point.value), r="4", class_=f"side-{j}")


def _grid(scale: Scale) -> Iterator[Html]:
    for mark in scale.marks:
        y = _y(scale, mark)
        yield line("0", y, "100%", y, "grid" if mark else "base")
        yield text("-8", y + 4, short(mark), anchor="end")


def _labels(chart: Chart) -> Iterator[Html]:
    room = 100 / max(1, len(chart.labels))
    every = max(1, -(-len(chart.labels) // 12))
    for i, label in list(enumerate(chart.labels))[::every]:
        yield text(f"{room * (i + 0.5):.6g}%", HEIGHT + 18, label, anchor="middle")
    yield text("50%", HEIGHT + 36, chart.axis, anchor="middle")


# In numbers and words


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

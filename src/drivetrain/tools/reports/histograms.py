"""Histograms: for each label how often each value occurred, the second side's below the first one's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from drivetrain.tools.reports.axes import Scale, between, short
from drivetrain.tools.reports.drawing import field, figure, legend, legend_height, line, text
from drivetrain.tools.reports.markup import Attribute, Html, element

BINS, STRIP, UP, BELOW = 48, 18, 36, 42
"""The strip that names a histogram, the height of one side, and the room for the axis."""

GAP = 0.07
"""On both sides of a bar, as a share of its bin: a line at a value of the bin lies on the bar, not beside it."""

FAR = 30.0
"""Values that are so many times below every median share the first bar: they would squeeze all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """For each label the measured values of each side, which `names` names. At most two sides."""

    title: str
    about: str
    axis: str
    labels: Sequence[str]
    names: Sequence[str]
    values: Sequence[Sequence[Sequence[float]]]


def distribution(shown: Distribution) -> Html | None:
    """A histogram for each label; the second side's hangs below the first one's. None without values."""
    values = [value for row in shown.values for side in row for value in side if value > 0]
    if not values:
        return None
    least = min(median(side) for row in shown.values for side in row if any(side)) / FAR
    scale = between(max(min(values), least), max(values))
    tall, offset = STRIP + UP * len(shown.names) + 6, legend_height(shown.names)
    drawn = [*legend(shown.names)]
    for i, (label, row) in enumerate(zip(shown.labels, shown.values, strict=True)):
        drawn.append(text("0", offset + i * tall + 13, label, class_="row"))
        drawn.append(field(offset + i * tall, tall, _histograms(row, scale), left=0.0, width=100.0))
    height = offset + tall * len(shown.labels)
    marks = [text(f"{at:.6g}%", 18, short(mark), anchor=_anchor(at)) for at, mark in _apart(scale)]
    drawn.append(field(height, BELOW, [*marks, text("50%", 36, shown.axis, anchor="middle")], left=2.0, width=96.0))
    said = "; ".join(
        f"{label}, {name}: median {short(median(side))}"
        for label, row in zip(shown.labels, shown.values, strict=True)
        for name, side in zip(shown.names, row, strict=True)
        if side
    )
    return figure(shown.title, shown.about, drawn, height + BELOW, f"{shown.axis}: {said}")


def _histograms(row: Sequence[Sequence[float]], scale: Scale) -> Iterator[Html]:
    base = float(STRIP + UP)
    yield line("2%", base, "98%", base, "base")
    for j, side in enumerate(row):
        counts = [0] * BINS
        for value in side:
            counts[min(BINS - 1, int(scale.at(value) / 100 * BINS))] += 1
        for i, count in enumerate(counts):
            if count:
                high = max(1.5, (UP - 4) * count / max(counts))
                left = (i + GAP) / BINS
                box: dict[str, Attribute] = {"x": f"{2 + 96 * left:.6g}%", "width": f"{96 * (1 - 2 * GAP) / BINS:.6g}%"}
                yield element("rect", class_=f"side-{j}", y=base + 1 if j else base - high, height=high, **box)
        if side:
            x = f"{2 + 0.96 * scale.at(median(side)):.6g}%"
            yield line(x, base, x, base + UP if j else float(STRIP), "reach")


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

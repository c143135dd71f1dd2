"""Percentiles and spreads of measured values."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MOST_VALUES = 200
"""So many are enough to draw how they are distributed."""


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of `count` values; None if there are none."""

    count: int
    p50: float | None
    p90: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class Spread:
    """The median, the lowest and the highest of some rounds."""

    median: float
    low: float
    high: float


def percentiles(values: Iterable[float]) -> Percentiles:
    ordered = sorted(values)
    return Percentiles(len(ordered), *(_at(ordered, share) for share in (0.5, 0.9, 0.99)))


def thinned(values: Iterable[float], most: int = MOST_VALUES) -> tuple[float, ...]:
    """In order; of many, the lowest, the highest and others at even steps between them."""
    ordered = sorted(values)
    if len(ordered) > most:
        ordered = [ordered[round(i * (len(ordered) - 1) / (most - 1))] for i in range(most)]
    return tuple(round(value, 6) for value in ordered)


def spread(values: Iterable[float]) -> Spread | None:
    """None if there are no values."""
    found = list(values)
    return Spread(statistics.median(found), min(found), max(found)) if found else None


def _at(ordered: Sequence[float], share: float) -> float | None:
    """Interpolated between the two nearest values."""
    if not ordered:
        return None
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)

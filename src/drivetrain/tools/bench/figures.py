"""Percentiles and spreads of what was measured. Values only."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of `count` values; None where there was none."""

    count: int
    p50: float | None
    p90: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class Spread:
    """The middle one of some rounds, and the least and the most."""

    median: float
    low: float
    high: float


def percentiles(values: Iterable[float]) -> Percentiles:
    ordered = sorted(values)
    return Percentiles(len(ordered), *(_at(ordered, share) for share in (0.5, 0.9, 0.99)))


def spread(values: Iterable[float]) -> Spread | None:
    """None of no values."""
    found = list(values)
    return Spread(statistics.median(found), min(found), max(found)) if found else None


def _at(ordered: Sequence[float], share: float) -> float | None:
    """Between the two values beside the place, in proportion."""
    if not ordered:
        return None
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)

"""Scales: round marks on an axis, where a value lies, and numbers short enough to stand beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass

LOG_FROM = 12.0
"""A scale of powers shows values that are this many times apart."""


@dataclass(frozen=True, slots=True)
class Scale:
    """`marks` are values within it. `at` is in percent."""

    low: float
    high: float
    marks: tuple[float, ...]
    log: bool = False

    def at(self, value: float) -> float:
        low, high, value = (math.log(x) if self.log else x for x in (self.low, self.high, max(value, self.low)))
        return 100 * min(1.0, (value - low) / (high - low))


def from_zero(highest: float) -> Scale:
    """In round steps up to the highest value or just beyond."""
    marks = ticks(highest)
    return Scale(0.0, marks[-1], tuple(marks))


def between(low: float, high: float) -> Scale:
    """For values that all are above 0: of powers if they are far apart."""
    if high > LOG_FROM * low:
        low, high = low / 1.1, high * 1.1
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        steps = (1, 2, 5) if high / low < 200 else (1,)
        marks = [step * 10.0**power for power in decades for step in steps]
        return Scale(low, high, tuple(mark for mark in marks if low <= mark <= high), log=True)
    return from_zero(high)


def ticks(highest: float, wanted: int = 4) -> list[float]:
    """From 0 in round steps up to the highest value or just beyond."""
    if not 0 < highest < math.inf:
        return [0.0, 1.0]
    rough = highest / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step * power for step in (1, 2, 5, 10) if step * power >= rough * 0.999)
    return [i * step for i in range(math.ceil(highest / step * 0.999) + 1)]


def short(value: float) -> str:
    """Three digits, or all that come before the point."""
    if abs(value) >= 100_000:
        return f"{value / 1000:,.0f}k" if abs(value) < 100_000_000 else f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"

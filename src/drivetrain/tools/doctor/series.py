"""A reader of the Prometheus text format that needs no package and accepts any text."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from drivetrain.tools.doctor.redact import Redactor
from drivetrain.tools.doctor.values import MOST, number

MAX_SAMPLES = 200_000
_KNOWN = ("drivetrain_", "process_", "vllm:", "llamacpp:")
_SAMPLE = re.compile(r"([a-zA-Z_][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+\S+)?\s*")
_LABEL = re.compile(r'\s*([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"\s*,?')
_ESCAPES = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}

Row = tuple[Mapping[str, str], float]


@dataclass(frozen=True, slots=True)
class Buckets:
    """`totals` counts the values up to each of the `bounds`, which end with infinity."""

    bounds: Sequence[float]
    totals: Sequence[float]

    @property
    def count(self) -> float:
        return self.totals[-1]

    def quantile(self, share: float) -> float:
        """Interpolated within a bucket; in the last one, its lower bound. `count` is not 0."""
        rank, below, low = share * self.count, 0.0, 0.0
        for bound, total in zip(self.bounds, self.totals, strict=True):
            if total >= rank and total > below:
                return low if math.isinf(bound) else low + (bound - low) * (rank - below) / (total - below)
            below, low = total, bound
        raise AssertionError("the last bucket holds everything")


class Series:
    """Samples by name. `rows` and `value` take the labels that must match."""

    def __init__(self, samples: Mapping[str, Sequence[Row]]) -> None:
        self._samples = samples

    @classmethod
    def parse(cls, text: str, redactor: Redactor) -> Series:
        """Lines that are not samples are skipped."""
        samples: dict[str, list[Row]] = {}
        for line in text.split("\n")[:MAX_SAMPLES]:
            found = _SAMPLE.fullmatch(line) if line.startswith(_KNOWN) else None
            value = None if found is None else _value(found[3])
            if found is not None and value is not None:
                labels = {name: redactor.text(_unescaped(label)) for name, label in _LABEL.findall(found[2] or "")}
                samples.setdefault(found[1], []).append((labels, value))
        return cls(samples)

    def __contains__(self, name: str) -> bool:
        return name in self._samples

    def rows(self, name: str, **labels: str) -> list[Row]:
        wanted = labels.items()
        return [row for row in self._samples.get(name, ()) if wanted <= row[0].items()]

    def value(self, name: str, **labels: str) -> float | None:
        """The sum of the matching samples; None if there are none."""
        found = [value for _, value in self.rows(name, **labels)]
        return sum(found) if found else None

    def buckets(self, name: str, **labels: str) -> Buckets | None:
        """None if nothing was counted."""
        pairs = sorted((bound, n) for row, n in self.rows(f"{name}_bucket", **labels) if (bound := _bound(row)) >= 0)
        totals: list[float] = []
        for _, total in pairs:
            totals.append(max([total, *totals[-1:]]))
        if not pairs or not math.isinf(pairs[-1][0]) or not totals[-1]:
            return None
        return Buckets([bound for bound, _ in pairs], totals)


def _value(text: str) -> float | None:
    try:
        return number(float(text))
    except ValueError:
        return None


def _bound(labels: Mapping[str, str]) -> float:
    """-1 if it is not a bound."""
    try:
        bound = float(labels.get("le", ""))
    except ValueError:
        return -1.0
    return bound if math.isinf(bound) or 0 <= bound <= MOST else -1.0


def _unescaped(text: str) -> str:
    return re.sub(r"\\.", lambda match: _ESCAPES.get(match[0], match[0]), text)

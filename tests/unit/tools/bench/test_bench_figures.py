"""Percentiles and spreads, none and one value included."""

from __future__ import annotations

import pytest

from drivetrain.tools.bench.figures import Percentiles, Spread, percentiles, spread


def test_of_nothing_there_is_nothing() -> None:
    assert percentiles([]) == Percentiles(0, None, None, None)
    assert spread([]) is None


def test_one_value_is_every_percentile() -> None:
    assert percentiles([3.0]) == Percentiles(1, 3.0, 3.0, 3.0)
    assert spread([3.0]) == Spread(3.0, 3.0, 3.0)


def test_values_between_are_in_proportion() -> None:
    found = percentiles([30.0, 10.0, 20.0])
    assert (found.count, found.p50) == (3, 20.0)
    assert found.p90 == pytest.approx(28.0)
    assert found.p99 == pytest.approx(29.8)


def test_of_a_hundred_and_one_values_a_percentile_is_one_of_them() -> None:
    found = percentiles(float(value) for value in range(100, -1, -1))
    assert [found.p50, found.p90, found.p99] == pytest.approx([50, 90, 99])


def test_a_spread_is_the_middle_and_the_ends() -> None:
    assert spread([5.0, 1.0, 2.0, 4.0]) == Spread(3.0, 1.0, 5.0)

"""The text of `/metrics`: read as Prometheus's own package writes it, and whatever else it holds passed over."""

from __future__ import annotations

import math

import pytest
from diagnosis_pages import METRICS, WORDS
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from drivetrain.tools.doctor.series import Buckets, Series

ODD = 'a "quoted" \\ name\nof two lines, with a } in it'


def parse(text: str) -> Series:
    return Series.parse(text, WORDS)


def test_what_prometheus_client_writes() -> None:
    registry = CollectorRegistry()
    Gauge("drivetrain_now", "now", ("model", "kind"), registry=registry).labels(ODD, "x").set(2.5)
    Counter("drivetrain_done", "done", ("model",), registry=registry).labels("m").inc(3)
    times = Histogram("drivetrain_s", "s", ("model",), buckets=(0.1, 1.0), registry=registry).labels("m")
    for seconds in (0.05, 0.5, 0.6, 5.0):
        times.observe(seconds)
    series = parse(generate_latest(registry).decode())
    assert series.value("drivetrain_done_total", model="m") == 3
    ((labels, value),) = series.rows("drivetrain_now", kind="x")
    assert value == 2.5
    assert labels["model"] == ODD.replace("\n", "\\n")
    buckets = series.buckets("drivetrain_s", model="m")
    assert buckets is not None
    assert (list(buckets.bounds), list(buckets.totals)) == ([0.1, 1.0, math.inf], [1, 3, 4])


def test_rows_by_label_and_sums() -> None:
    series = parse(METRICS)
    assert series.value("drivetrain_requests_total", model="small") == 100
    assert series.value("drivetrain_requests_total", ending="overloaded") == 10
    assert series.value("drivetrain_requests_total", model="other") is None
    assert "drivetrain_build_info" in series
    assert "drivetrain_other" not in series


@pytest.mark.parametrize(
    "line",
    ["drivetrain_x NaN", "drivetrain_x -1", "drivetrain_x +Inf", "drivetrain_x", "drivetrain_x{a=} many", "other_x 1",
     "drivetrain_x 1e300", "drivetrain_x{ 1", "# drivetrain_x 1"],
)  # fmt: skip
def test_what_is_no_sample_is_passed_over(line: str) -> None:
    series = parse(f"{line}\ndrivetrain_y 4 1700000000\n")
    assert "drivetrain_x" not in series
    assert series.value("drivetrain_y") == 4


def test_quantiles() -> None:
    buckets = Buckets((0.1, 0.5, math.inf), (50, 90, 100))
    assert buckets.quantile(0.5) == pytest.approx(0.1)
    assert buckets.quantile(0.25) == pytest.approx(0.05)
    assert buckets.quantile(0.7) == pytest.approx(0.3)
    assert buckets.quantile(0.99) == 0.5
    assert Buckets((math.inf,), (3,)).quantile(0.5) == 0


@given(st.lists(st.floats(0, 20), min_size=1), st.floats(0, 1))
def test_a_quantile_is_in_the_bucket_where_it_belongs(values: list[float], share: float) -> None:
    bounds = (0.5, 1.0, 2.0, 5.0, 10.0, math.inf)
    buckets = Buckets(bounds, [sum(value <= bound for value in values) for bound in bounds])
    exact = sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
    high = next(bound for bound in bounds if exact <= bound)
    low = max((bound for bound in bounds if bound < high), default=0.0)
    assert low - 1e-9 <= buckets.quantile(share) <= (10.0 if math.isinf(high) else high + 1e-9)


def test_buckets_that_are_none() -> None:
    assert parse('drivetrain_s_bucket{le="1"} 3\n').buckets("drivetrain_s") is None
    assert parse('drivetrain_s_bucket{le="x"} 3\ndrivetrain_s_bucket{le="+Inf"} 0\n').buckets("drivetrain_s") is None
    falling = parse('drivetrain_s_bucket{le="1"} 9\ndrivetrain_s_bucket{le="+Inf"} 3\n').buckets("drivetrain_s")
    assert falling is not None
    assert falling.quantile(0.99) <= 1

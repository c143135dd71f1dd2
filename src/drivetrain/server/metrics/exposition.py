"""Series for Prometheus, made of plain numbers when somebody reads them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from drivetrain.core.stats import Histogram


def family(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
    name: str,
    meaning: str,
    labels: Sequence[str],
    samples: Iterable[tuple[Sequence[str], float]],
) -> Metric:
    made = kind(name, meaning, labels=labels)
    for values, number in samples:
        made.add_metric(values, float(number))
    return made


def histogram(
    name: str, meaning: str, labels: Sequence[str], samples: Iterable[tuple[Sequence[str], Histogram]]
) -> Metric:
    made = HistogramMetricFamily(name, meaning, labels=labels)
    for values, of in samples:
        total, buckets = 0, []
        for bound, number in zip((*map(float, of.bounds), float("inf")), of.counts, strict=True):
            total += number
            buckets.append(("+Inf" if bound == float("inf") else str(bound), total))
        made.add_metric(values, buckets=buckets, sum_value=of.sum)
    return made

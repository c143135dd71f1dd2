"""Series for Prometheus, made from plain numbers when they are read."""

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
    metric = kind(name, meaning, labels=labels)
    for values, number in samples:
        metric.add_metric(values, float(number))
    return metric


def histogram(
    name: str, meaning: str, labels: Sequence[str], samples: Iterable[tuple[Sequence[str], Histogram]]
) -> Metric:
    metric = HistogramMetricFamily(name, meaning, labels=labels)
    for values, of in samples:
        total, buckets = 0, []
        for bound, number in zip((*map(float, of.bounds), float("inf")), of.counts, strict=True):
            total += number
            buckets.append(("+Inf" if bound == float("inf") else str(bound), total))
        metric.add_metric(values, buckets=buckets, sum_value=of.sum)
    return metric

"""Series about the server's models as such, as they are loaded and unloaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from drivetrain.server.metrics.exposition import family


def series(reports: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    """From `Models.report`."""

    def rows(key: str) -> list[tuple[tuple[str], float]]:
        return [((report["id"],), report[key]) for report in reports]

    yield family(
        GaugeMetricFamily,
        "drivetrain_model_loaded",
        "1 while the model is loaded",
        ("model",),
        [((report["id"],), int(report["loaded_s"] is not None)) for report in reports],
    )
    yield family(
        GaugeMetricFamily,
        "drivetrain_model_requests_waiting",
        "requests waiting for the model to load",
        ("model",),
        rows("waiting"),
    )
    yield family(CounterMetricFamily, "drivetrain_model_loads", "successful loads", ("model",), rows("loads"))
    yield family(CounterMetricFamily, "drivetrain_model_failed_loads", "failed loads", ("model",), rows("failed_loads"))
    yield family(CounterMetricFamily, "drivetrain_model_unloads", "unloads", ("model",), rows("unloads"))

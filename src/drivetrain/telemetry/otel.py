"""OpenTelemetry's SDK, set up to send spans and histograms by OTLP over HTTP. Needs the extra `otel`.

with open_tracer("http://127.0.0.1:4318") as tracer:
    async with drivetrain.Worker.open("smollm2-135m", tracer=tracer) as worker:
        ...
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Self
from urllib.parse import urlsplit

from drivetrain import __version__
from drivetrain.core.errors import InvalidSetting, MissingExtra
from drivetrain.telemetry.tracing import GenAiTracer

try:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
except ImportError as exc:
    raise MissingExtra("OpenTelemetry", extra="otel") from exc

FLUSH_S = 5.0
"""What the end waits for a collector to take what is left; then that is lost."""

_log = logging.getLogger(__name__)


def open_tracer(
    endpoint: str | None = None, *, content: bool = False, sample: float | None = None, flush_s: float = FLUSH_S
) -> OtelTracer:
    """A tracer that sends to the collector at `endpoint`, a URL without `/v1/traces`. Close it, or use it in a `with`.

    What is left out is as the SDK's environment variables say (`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_SERVICE_NAME`,
    `OTEL_TRACES_SAMPLER`, `OTEL_BSP_...` and so on). `sample` is the share of the traces that begin here; of others
    the caller's headers decide. `content` puts prompts and outputs into the spans. Raises `InvalidSetting`.
    """
    if sample is not None and not 0 <= sample <= 1:
        raise InvalidSetting(f"trace_sample is {sample:g}; it must be from 0 to 1", param="trace_sample")
    base = None if endpoint is None else _base_of(endpoint)
    resource, spans, meters = _resource(), None, None
    closings: list[_Closing] = []
    try:
        if _exported("OTEL_TRACES_EXPORTER"):
            sampler = None if sample is None else ParentBased(TraceIdRatioBased(sample))
            spans = TracerProvider(sampler, resource, shutdown_on_exit=False)
            span_exporter = OTLPSpanExporter(base and f"{base}/v1/traces")
            spans.add_span_processor(BatchSpanProcessor(span_exporter))
            closings.append(_Closing(spans.shutdown, span_exporter.shutdown))
        if _exported("OTEL_METRICS_EXPORTER"):
            metric_exporter = OTLPMetricExporter(base and f"{base}/v1/metrics")
            meters = MeterProvider([PeriodicExportingMetricReader(metric_exporter)], resource, shutdown_on_exit=False)
            closings.append(_Closing(meters.shutdown, metric_exporter.shutdown))
    except ValueError as exc:
        raise InvalidSetting(f"OpenTelemetry does not take its settings: {exc}", param="otlp_endpoint") from exc
    return OtelTracer(spans, meters, closings, content=content, flush_s=flush_s)


class _Closing(NamedTuple):
    send_and_close: Callable[[], None]
    give_up: Callable[[], None]
    """Ends the wait before another try; what was not sent is lost."""


class OtelTracer(GenAiTracer):
    """Owns both providers. Spans wait in a bounded queue for a thread that sends them; a full one drops them."""

    def __init__(
        self,
        spans: TracerProvider | None,
        meters: MeterProvider | None,
        closings: list[_Closing],
        *,
        content: bool,
        flush_s: float,
    ) -> None:
        super().__init__(spans, meters, content=content)
        self._closings = closings
        self._flush_s = flush_s

    def close(self) -> None:
        """Send what is left, for at most `flush_s`. Whatever the collector does, this returns and raises nothing."""
        until = time.monotonic() + self._flush_s
        running = [(closing, _started(closing.send_and_close)) for closing in self._closings]
        for closing, thread in running:
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                closing.give_up()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _started(shut: Callable[[], None]) -> threading.Thread:
    def shut_down() -> None:
        try:
            shut()
        except Exception as exc:  # noqa: BLE001 - of the SDK or of what it sends with; there is nobody to raise it to
            _log.warning("OpenTelemetry could not send all that was left: %s", exc)

    thread = threading.Thread(target=shut_down, name="drivetrain-otel-close", daemon=True)
    thread.start()
    return thread


def _base_of(endpoint: str) -> str:
    if "@" in endpoint:  # not said again, and no part of a deployment's file
        raise InvalidSetting(
            "the address of a collector must hold no name or password; put them into OTEL_EXPORTER_OTLP_HEADERS, as "
            "authorization=Basic%20...",
            param="otlp_endpoint",
        )
    parts = urlsplit(endpoint)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise InvalidSetting(
            f"{endpoint!r} is not the address of a collector; give a URL such as http://127.0.0.1:4318",
            param="otlp_endpoint",
        )
    return endpoint.rstrip("/")


def _resource() -> Resource:
    """Named `drivetrain`, unless the environment names it."""
    found = Resource.create({SERVICE_VERSION: __version__})
    if str(found.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        found = found.merge(Resource({SERVICE_NAME: "drivetrain"}))
    return found


def _exported(variable: str) -> bool:
    """`none` turns one of the two off, as it does elsewhere: not every backend takes metrics."""
    return os.environ.get(variable, "").strip().lower() != "none"

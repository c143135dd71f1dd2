"""The tracer port on OpenTelemetry's SDK: spans and histograms, sent by OTLP over HTTP. Needs the extra `otel`.

with open_tracer("http://127.0.0.1:4318") as tracer:
    async with drivetrain.Worker.open("smollm2-135m", tracer=tracer) as worker:
        ...
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Self
from urllib.parse import urlsplit

from drivetrain import __version__
from drivetrain.core.errors import InvalidSetting, MissingExtra
from drivetrain.telemetry.genai import HISTOGRAMS
from drivetrain.telemetry.tracing import Attributes, Value
from drivetrain.telemetry.tracing import SpanKind as OurKind
from drivetrain.telemetry.w3c import trace_context

try:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.metrics import Histogram
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
    from opentelemetry.trace import SpanKind, Status, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as exc:
    raise MissingExtra("OpenTelemetry", extra="otel") from exc

FLUSH_S = 5.0
"""What the end waits for a collector to take what is left; then that is lost."""

_KINDS = {OurKind.INTERNAL: SpanKind.INTERNAL, OurKind.SERVER: SpanKind.SERVER}
_W3C = TraceContextTextMapPropagator()
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
    resource = _resource()
    try:
        spans = TracerProvider(
            sampler=None if sample is None else ParentBased(TraceIdRatioBased(sample)),
            resource=resource,
            shutdown_on_exit=False,
        )
        sends = _exported("OTEL_TRACES_EXPORTER")
        if sends:
            spans.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(base and f"{base}/v1/traces")))
        readers = []
        if _exported("OTEL_METRICS_EXPORTER"):
            readers.append(PeriodicExportingMetricReader(OTLPMetricExporter(base and f"{base}/v1/metrics")))
        meters = MeterProvider(readers, resource=resource, shutdown_on_exit=False)
    except ValueError as exc:
        raise InvalidSetting(f"OpenTelemetry does not take its settings: {exc}", param="otlp_endpoint") from exc
    return OtelTracer(spans, meters, content=content, flush_s=flush_s, sends=sends)


class OtelTracer:
    """Owns both providers. Spans wait in a bounded queue for a thread that sends them; a full one drops them.

    `sends` is whether spans go anywhere; if not, there are only the measurements.
    """

    active = True

    def __init__(
        self, spans: TracerProvider, meters: MeterProvider, *, content: bool, flush_s: float, sends: bool
    ) -> None:
        self.content = content
        self._sends = sends
        self._spans = spans
        self._meters = meters
        self._flush_s = flush_s
        self._tracer = spans.get_tracer("drivetrain", __version__)
        meter = meters.get_meter("drivetrain", __version__)
        self._histograms = {
            name: meter.create_histogram(name, "s", meaning, explicit_bucket_boundaries_advisory=bounds)
            for name, (meaning, bounds) in HISTOGRAMS.items()
        }

    def start(
        self,
        name: str,
        *,
        kind: OurKind = OurKind.INTERNAL,
        parent: Mapping[str, str] | None = None,
        attributes: Attributes | None = None,
        began_ns: int | None = None,
    ) -> OtelSpan:
        context, given = None, trace_context(parent)
        if parent is not None:
            context = _W3C.extract(given or {}, Context())
        span = self._tracer.start_span(
            name, context, _KINDS[kind], attributes=_clean(attributes or {}), start_time=began_ns
        )
        within = trace.set_span_in_context(span, context)
        return OtelSpan(self._tracer, self._histograms, span, within, given, sent=self._sends)

    def close(self) -> None:
        """Send what is left, for at most `flush_s`. Whatever the collector does, this returns and raises nothing."""
        until = time.monotonic() + self._flush_s
        threads = [_started(self._spans.shutdown), _started(self._meters.shutdown)]
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class OtelSpan:
    """`given` are the caller's trace headers, `sent` whether the span goes anywhere."""

    def __init__(
        self,
        tracer: trace.Tracer,
        histograms: Mapping[str, Histogram],
        span: trace.Span,
        context: Context,
        given: Mapping[str, str] | None,
        *,
        sent: bool,
    ) -> None:
        self._tracer = tracer
        self._histograms = histograms
        self._span = span
        self._context = context
        self._given = given
        self._sent = sent

    @property
    def recorded(self) -> bool:
        return self._span.is_recording()

    @property
    def context(self) -> Mapping[str, str] | None:
        """Also of a span that the sampler left out: the server that gets it then leaves out its own."""
        if not self._sent:
            return self._given
        headers: dict[str, str] = {}
        _W3C.inject(headers, self._context)
        return headers or None

    def set(self, attributes: Attributes) -> None:
        self._span.set_attributes(_clean(attributes))

    def child(self, name: str, began_ns: int, ended_ns: int, *, error_type: str | None = None) -> None:
        span = self._tracer.start_span(name, self._context, start_time=began_ns)
        _end(span, error_type, "", ended_ns)

    def event(self, name: str, attributes: Attributes, at_ns: int) -> None:
        self._span.add_event(name, _clean(attributes), at_ns)

    def measure(self, name: str, seconds: float, attributes: Attributes) -> None:
        self._histograms[name].record(seconds, attributes, self._context)

    def end(self, *, error_type: str | None = None, message: str = "", at_ns: int | None = None) -> None:
        _end(self._span, error_type, message, at_ns)


def _started(shut: Callable[[], None]) -> threading.Thread:
    def shut_down() -> None:
        try:
            shut()
        except Exception as exc:  # noqa: BLE001 - of the SDK or of what it sends with; there is nobody to raise it to
            _log.warning("OpenTelemetry could not send all that was left: %s", exc)

    thread = threading.Thread(target=shut_down, name="drivetrain-otel-close", daemon=True)
    thread.start()
    return thread


def _end(span: trace.Span, error_type: str | None, message: str, at_ns: int | None) -> None:
    if error_type is not None:
        span.set_attribute("error.type", error_type)
        span.set_status(Status(StatusCode.ERROR, _text(message) or None))
    span.end(at_ns)


def _clean(attributes: Attributes) -> dict[str, Value]:
    """One text that is not UTF-8 would cost all the spans that are sent with it."""
    return {name: _text(value) if isinstance(value, str) else _texts(value) for name, value in attributes.items()}


def _texts(value: Value) -> Value:
    return tuple(map(_text, value)) if isinstance(value, tuple) else value


def _text(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


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

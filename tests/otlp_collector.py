"""An OTLP endpoint for tests: it decodes what a real exporter sends over HTTP and keeps it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

SERVER = 2
"""The kind of a span, as the protocol numbers it."""
ERROR = 2
"""The status of a failed span."""


@dataclass(frozen=True)
class SentSpan:
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    state: str
    kind: int
    began_ns: int
    ended_ns: int
    status: int
    message: str
    attributes: dict[str, Any]
    resource: dict[str, Any]
    events: list[tuple[str, int, dict[str, Any]]]


@dataclass(frozen=True)
class SentHistogram:
    count: int
    sum: float
    bounds: tuple[float, ...]
    attributes: dict[str, Any]
    num_exemplars: int


@dataclass
class Collector:
    """`raw` are the bodies as they came. While `hold` is clear, answers wait."""

    base: str = ""
    spans: list[SentSpan] = field(default_factory=list)
    histograms: dict[str, list[SentHistogram]] = field(default_factory=dict)
    raw: list[bytes] = field(default_factory=list)
    hold: threading.Event = field(default_factory=threading.Event)

    @property
    def requests(self) -> list[SentSpan]:
        return [span for span in self.spans if span.kind == SERVER]

    def children(self, span: SentSpan) -> list[SentSpan]:
        """In the order of their times."""
        found = [s for s in self.spans if s.parent_id == span.span_id and s.trace_id == span.trace_id]
        return sorted(found, key=lambda s: (s.began_ns, s.ended_ns))

    def take(self, path: str, body: bytes) -> None:
        self.raw.append(body)
        if path == "/v1/traces":
            self._take_spans(ExportTraceServiceRequest.FromString(body))
        else:
            assert path == "/v1/metrics"
            self._take_metrics(ExportMetricsServiceRequest.FromString(body))

    def _take_spans(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            about = _values(resource.resource.attributes)
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.spans.append(
                        SentSpan(
                            name=span.name,
                            trace_id=span.trace_id.hex(),
                            span_id=span.span_id.hex(),
                            parent_id=span.parent_span_id.hex(),
                            state=span.trace_state,
                            kind=span.kind,
                            began_ns=span.start_time_unix_nano,
                            ended_ns=span.end_time_unix_nano,
                            status=span.status.code,
                            message=span.status.message,
                            attributes=_values(span.attributes),
                            resource=about,
                            events=[(e.name, e.time_unix_nano, _values(e.attributes)) for e in span.events],
                        )
                    )

    def _take_metrics(self, request: ExportMetricsServiceRequest) -> None:
        """The last export counts: what is sent is the sum until then."""
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    assert metric.unit == "s"
                    self.histograms[metric.name] = [
                        SentHistogram(
                            count=point.count,
                            sum=point.sum,
                            bounds=tuple(point.explicit_bounds),
                            attributes=_values(point.attributes),
                            num_exemplars=len(point.exemplars),
                        )
                        for point in metric.histogram.data_points
                    ]


def _values(pairs: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    pair: KeyValue
    for pair in pairs:
        assert pair.key not in found
        found[pair.key] = _value(pair.value)
    return found


def _value(value: AnyValue) -> Any:
    if value.HasField("array_value"):
        return [_value(item) for item in value.array_value.values]
    return getattr(value, value.WhichOneof("value") or "string_value")


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()
    collector.hold.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.take(self.path, body)
            collector.hold.wait(30)
            self.send_response(200)
            self.send_header("content-length", "0")
            with contextlib.suppress(OSError):  # the exporter may have given up
                self.end_headers()

        def log_message(self, *_: Any) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector.base = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        collector.hold.set()
        server.shutdown()
        thread.join(10)
        server.server_close()

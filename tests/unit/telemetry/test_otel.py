"""Spans and measurements by the real SDK and exporter, against an endpoint that decodes what it is sent."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from drivetrain import __version__
from drivetrain.core.engine import ModelSpec, WeightsFormat
from drivetrain.core.errors import InvalidRequest, InvalidSetting
from drivetrain.core.messages import Message, TextPart
from drivetrain.core.request import GenerateRequest
from drivetrain.engines.fake import FakeEngine, Script
from drivetrain.telemetry.genai import HISTOGRAMS, REQUEST_DURATION, Operation
from drivetrain.telemetry.otel import open_tracer
from drivetrain.telemetry.tracing import GenAiTracer, end_span, headers_below
from drivetrain.worker.settings import Settings
from drivetrain.worker.worker import EngineWorker
from otlp_collector import ERROR, SERVER, Collector, SentSpan, collecting

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EXPORTER_OTLP_ENDPOINT", "SERVICE_NAME", "TRACES_SAMPLER", "TRACES_EXPORTER", "METRICS_EXPORTER"):
        monkeypatch.delenv(f"OTEL_{name}", raising=False)


@pytest.fixture(autouse=True, scope="module")
def no_thread_is_left() -> Iterator[None]:
    """One that still tries to send draws random numbers, which Hypothesis holds against a test of another file."""
    yield
    for thread in threading.enumerate():
        if thread.name.startswith(("Otel", "drivetrain-otel")):
            thread.join(60)


def sent(collector: Collector, headers: dict[str, str] | None, sample: float | None = None) -> list[SentSpan]:
    collector.spans.clear()
    with open_tracer(collector.base, sample=sample) as tracer:
        tracer.start("x", parent=headers).end()
    return collector.spans


def test_a_span_with_its_children_and_measurements(collector: Collector) -> None:
    now = time.time_ns()
    with open_tracer(collector.base + "/") as tracer:
        span = tracer.start("chat toy", kind=SpanKind.SERVER, attributes={"a": "b"}, began_ns=now)
        recorded = span.is_recording()
        span.set_attributes({"reasons": ("stop", "length"), "share": 0.5, "number": 3, "sure": True})
        tracer.child(span, "queue", now, now + 1000)
        tracer.child(span, "decode", now + 1000, now + 2000, "engine_error")
        span.add_event("drivetrain.restarted", {"error.type": "engine_error"}, now + 500)
        tracer.measure(span, REQUEST_DURATION, 0.03, {"a": "b"})
        end_span(span, "engine_error", "it broke", at_ns=now + 3000)
        assert (recorded, span.is_recording()) == (True, False)
    (root,) = collector.requests
    assert (root.name, root.kind, root.parent_id) == ("chat toy", SERVER, "")
    assert (root.began_ns, root.ended_ns) == (now, now + 3000)
    assert (root.status, root.message) == (ERROR, "it broke")
    assert root.attributes == {
        "a": "b", "reasons": ["stop", "length"], "share": 0.5, "number": 3, "sure": True,
        "error.type": "engine_error",
    }  # fmt: skip
    assert root.events == [("drivetrain.restarted", now + 500, {"error.type": "engine_error"})]
    assert root.resource["service.name"] == "drivetrain"
    assert root.resource["service.version"] == __version__
    queue, decode = collector.children(root)
    assert (queue.name, queue.began_ns, queue.ended_ns, queue.status) == ("queue", now, now + 1000, 0)
    assert (decode.name, decode.status, decode.attributes) == ("decode", ERROR, {"error.type": "engine_error"})
    (histogram,) = collector.histograms[REQUEST_DURATION]
    assert (histogram.count, histogram.sum, histogram.attributes) == (1, 0.03, {"a": "b"})
    assert histogram.bounds == HISTOGRAMS[REQUEST_DURATION][1]
    assert histogram.num_exemplars == 1


async def test_a_text_that_is_not_utf_8_costs_no_spans(collector: Collector) -> None:
    """One would keep all spans from being sent that are sent with it. The table of fields refuses most of them."""
    torn = "torn \ud800"
    spec = ModelSpec(name=torn, path=Path(), format=WeightsFormat.NONE)
    with open_tracer(collector.base, content=True) as tracer:
        async with EngineWorker(FakeEngine(Script(text="ab")), spec, Settings(), tracer=tracer) as worker:
            request = GenerateRequest(messages=(Message("user", (TextPart(torn),)),))
            with pytest.raises(InvalidRequest):
                await worker.complete(request)
            tracer.refuse(Operation.CHAT, InvalidRequest(torn), began_ns=1)
    ended, refused = collector.requests
    assert ended.name == "chat torn ?"
    assert "torn ?" in ended.attributes["gen_ai.input.messages"]
    assert refused.message == "torn ?"


def test_providers_of_the_programs_own() -> None:
    """A program that has set up OpenTelemetry gives us what it has; what it has not goes nowhere."""
    exporter, spans = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    spans.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = GenAiTracer(spans)
    with spans.get_tracer("the program").start_as_current_span("theirs") as theirs:
        span = tracer.start("ours")
        tracer.child(span, "queue", 1, 2)
        tracer.measure(span, REQUEST_DURATION, 0.03, {})
        span.end()
    found = {span.name: span for span in exporter.get_finished_spans()}
    assert found["ours"].parent == theirs.get_span_context()
    assert found["queue"].parent == span.get_span_context()


def test_without_providers_the_programs_span_is_only_named() -> None:
    exporter, spans = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    spans.add_span_processor(SimpleSpanProcessor(exporter))
    with spans.get_tracer("the program").start_as_current_span("theirs") as theirs:
        span = GenAiTracer().start("ours", attributes={"a": "b"})
        end_span(span, "engine_error")
        assert headers_below(span) == headers_below(theirs)
        assert theirs.is_recording()
    (found,) = exporter.get_finished_spans()
    assert (found.name, found.attributes, found.status.is_ok) == ("theirs", {}, True)


def test_the_callers_headers_place_it(collector: Collector) -> None:
    (span,) = sent(collector, {"TraceParent": PARENT, "tracestate": "vendor=x,other@v=y"})
    assert span.trace_id == PARENT.split("-")[1]
    assert span.parent_id == PARENT.split("-")[2]
    assert span.state == "vendor=x,other@v=y"


@pytest.mark.parametrize(
    "header",
    ["", "nonsense", "00-0-0-01", PARENT.upper(), "ff" + PARENT[2:], PARENT + "-more", PARENT.replace("0af7", "zzzz"),
     f"00-{'0' * 32}-b7ad6b7169203331-01"],
)  # fmt: skip
def test_a_bad_header_is_as_none(collector: Collector, header: str) -> None:
    (span,) = sent(collector, {"traceparent": header, "tracestate": "vendor=x"})
    assert span.parent_id == ""
    assert span.state == ""


def test_a_bad_state_leaves_the_parent_and_nobody_is_warned(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    for state in ("", "no equals", "UPPER=x", "a=" + "\x7f", "=x", ",,", "a=b,,c=d"):
        (span,) = sent(collector, {"traceparent": PARENT, "tracestate": state})
        assert span.parent_id == PARENT.split("-")[2]
        assert span.state == ("a=b,c=d" if state == "a=b,,c=d" else "")
    assert not caplog.records


def test_who_decides_what_is_recorded(collector: Collector) -> None:
    unsampled = PARENT.removesuffix("01") + "00"
    assert sent(collector, None)
    assert sent(collector, None, sample=1.0)
    assert not sent(collector, None, sample=0.0)
    assert sent(collector, {"traceparent": PARENT}, sample=0.0)
    assert not sent(collector, {"traceparent": unsampled}, sample=1.0)


@pytest.mark.parametrize("flags", ["01", "00"])
def test_what_is_handed_on_is_the_place_of_the_span(collector: Collector, flags: str) -> None:
    """The caller's decision too: what is not recorded here is not recorded there."""
    parent = PARENT.removesuffix("01") + flags
    with open_tracer(collector.base) as tracer:
        span = tracer.start("x", parent={"traceparent": parent, "tracestate": "vendor=x"})
        context = headers_below(span)
        span.end()
    assert context is not None
    version, trace_id, span_id, handed = context["traceparent"].split("-")
    assert (version, trace_id, handed) == ("00", parent.split("-")[1], flags)
    assert span_id != parent.split("-")[2]
    assert context["tracestate"] == "vendor=x"
    assert [sent.span_id for sent in collector.spans] == [span_id] * (flags == "01")


@pytest.mark.parametrize(("name", "value"), [("OTEL_TRACES_EXPORTER", "none"), ("OTEL_SDK_DISABLED", "true")])
def test_a_span_that_goes_nowhere_is_nobodys_parent(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with open_tracer(collector.base) as tracer:
        spans = [tracer.start("x", parent=parent) for parent in (None, {}, {"TraceParent": PARENT})]
        assert [headers_below(span) for span in spans] == [None, None, {"traceparent": PARENT}]
        for span in spans:
            span.end()
    assert not collector.spans


def test_the_sampler_of_the_environment(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    assert not sent(collector, None)
    assert sent(collector, None, sample=1.0)


def test_what_is_not_recorded_is_counted_and_has_no_children(collector: Collector) -> None:
    with open_tracer(collector.base, sample=0.0) as tracer:
        span = tracer.start("x")
        assert not span.is_recording()
        tracer.child(span, "queue", 1, 2)
        tracer.measure(span, REQUEST_DURATION, 0.03, {})
        span.end()
    assert not collector.spans
    assert collector.histograms[REQUEST_DURATION][0].count == 1


def test_the_environment_says_where_and_who(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.base)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    with open_tracer() as tracer:
        span = tracer.start("x")
        tracer.measure(span, REQUEST_DURATION, 0.03, {})
        span.end()
    assert collector.spans[0].resource["service.name"] == "mine"
    assert not collector.histograms


@pytest.mark.parametrize("endpoint", ["", "127.0.0.1:4318", "ftp://x", "http://", "http://x/?y"])
def test_an_endpoint_that_is_none(endpoint: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        open_tracer(endpoint)
    assert caught.value.param == "otlp_endpoint"


@pytest.mark.parametrize("endpoint", ["http://me:hush@x:4318", "https://hush@x", "me:hush@x:4318", "ftp://me:hush@x"])
def test_an_endpoint_holds_no_secret_and_none_is_told(endpoint: str) -> None:
    with pytest.raises(InvalidSetting, match="OTEL_EXPORTER_OTLP_HEADERS") as caught:
        open_tracer(endpoint)
    assert caught.value.param == "otlp_endpoint"
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("sample", [-0.1, 1.1, float("nan")])
def test_a_share_that_is_none(sample: float) -> None:
    with pytest.raises(InvalidSetting):
        open_tracer("http://127.0.0.1:1", sample=sample)


def test_a_setting_of_the_sdk_that_it_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "-1")
    with pytest.raises(InvalidSetting, match="must be positive"):
        open_tracer("http://127.0.0.1:1")


def many(tracer: GenAiTracer, number: int) -> None:
    for _ in range(number):
        span = tracer.start("x")
        tracer.child(span, "queue", 1, 2)
        span.end()


PATIENCE_S = 60.0
"""Far more than a busy machine needs, far less than if spans waited for a collector."""


def test_a_collector_that_is_down_costs_nobody_anything(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")  # its thread shall not warn during other tests
    caplog.set_level(logging.CRITICAL)
    tracer = open_tracer("http://127.0.0.1:1", flush_s=0.3)
    began = time.monotonic()
    many(tracer, 50_000)  # if each full batch of 512 were waited for, 100 and more times a second
    tracer.close()
    assert time.monotonic() - began < PATIENCE_S


def test_a_collector_that_hangs_holds_up_the_end_for_a_limited_time(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    collector.hold.clear()
    tracer = open_tracer(collector.base, flush_s=0.5)
    began = time.monotonic()
    many(tracer, 5_000)  # more than the queue holds, and ten batches that would each wait for 10 s
    tracer.close()
    assert 0.4 < time.monotonic() - began < PATIENCE_S
    collector.hold.set()
    many(tracer, 10)


def test_nothing_is_tried_again_after_the_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "600")  # each of the SDK's tries; its own end waits for 30 s
    caplog.set_level(logging.CRITICAL)
    before = set(threading.enumerate())
    tracer = open_tracer("http://127.0.0.1:1", flush_s=0.1)
    many(tracer, 5_000)
    sending = set(threading.enumerate()) - before
    assert sending
    tracer.close()
    for thread in sending:
        thread.join(20)
        assert not thread.is_alive()


def test_without_the_sdk_the_remedy_is_told() -> None:
    code = (
        "import sys; sys.modules['opentelemetry.sdk'] = None\n"
        "from drivetrain.core.errors import MissingExtra\n"
        "try:\n    import drivetrain.telemetry.otel\n"
        "except MissingExtra as exc:\n    print(exc)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install '.[otel]'" in done.stdout

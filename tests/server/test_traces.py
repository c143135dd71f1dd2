"""Traces end to end: real HTTP requests that end in every way, and what a real exporter sends of them to an endpoint
that decodes it. Every request has exactly one span, closed, in its place in the caller's trace."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import secrets
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import openai
import pytest

from contract.rigs import Rig
from drivetrain.core.errors import EngineFailed
from drivetrain.telemetry.genai import HISTOGRAMS, REQUEST_DURATION, TIME_PER_OUTPUT_TOKEN, TIME_TO_FIRST_TOKEN
from drivetrain.telemetry.otel import open_tracer
from otlp_collector import ERROR, SERVER, Collector, SentSpan, collecting
from server.serving import Served, fake, serving
from server.test_process import started

TEXT_PHASES = ["queue", "prepare", "prefill", "decode"]
EMBEDDING_PHASES = ["queue", "prepare", "embed"]
SECRET = "zebra"
CLIENTS = 12


@dataclass
class Asked:
    """One HTTP request and what it must have come to: how many spans, of which operation, with which error.

    `errors` are the types that may be; None is an answer. `leave` is whether the client goes away in the middle.
    """

    path: str
    body: Any
    operation: str
    errors: tuple[str | None, ...]
    spans: int = 1
    leave: bool = False
    trace_id: str = field(default_factory=lambda: secrets.token_hex(16))
    span_id: str = field(default_factory=lambda: secrets.token_hex(8))
    status: int = 0

    @property
    def headers(self) -> dict[str, str]:
        return {"traceparent": f"00-{self.trace_id}-{self.span_id}-01", "tracestate": "vendor=x"}

    def send(self, served: Served) -> None:
        if self.leave:
            self._send_and_leave(served)
        else:
            self.status, _, _ = served.request("POST", self.path, self.body, self.headers)

    @property
    def raw(self) -> bytes:
        data = json.dumps(self.body).encode()
        head = f"POST {self.path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n"
        lines = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        return f"{head}{lines}\r\n".encode() + data

    def _send_and_leave(self, served: Served) -> None:
        with served.raw(60) as sock:
            sock.sendall(self.raw)
            if self.body["stream"]:
                assert sock.recv(100)
            else:
                time.sleep(0.05)


def chat(served: Served, errors: tuple[str | None, ...] = (None,), **more: Any) -> Asked:
    body = {
        "model": served.model,
        "messages": [{"role": "user", "content": f"{SECRET} hello"}],
        "max_tokens": 8,
        "ignore_eos": True,
        **more,
    }
    return Asked("/v1/chat/completions", body, "chat", errors)


def completion(served: Served, errors: tuple[str | None, ...] = (None,), **more: Any) -> Asked:
    body = {"model": served.model, "prompt": f"{SECRET} once", "max_tokens": 8, "ignore_eos": True, **more}
    return Asked("/v1/completions", body, "text_completion", errors)


def embedding(served: Served, errors: tuple[str | None, ...], **more: Any) -> Asked:
    body = {"model": served.model, "input": [f"{SECRET} one", "two"], **more}
    return Asked("/v1/embeddings", body, "embeddings", errors)


def mixed(served: Served) -> list[Asked]:
    """Requests that finish, are refused in every place that refuses, run out of time, and lose their clients."""
    talks = "chat" in served.worker.metadata.roles or served.worker.capabilities.chat
    talk = chat if talks else completion
    embeds: tuple[str | None, ...] = (None,) if served.worker.capabilities.embeddings else ("unsupported",)
    asked = [
        *[talk(served, stream=stream, stop=[f"{SECRET} stop"]) for stream in (True, False) for _ in range(2)],
        *[completion(served, stream=stream, n=2, seed=1) for stream in (True, False) for _ in range(2)],
        *[completion(served, stream=stream, max_tokens=1) for stream in (True, False)],
        *[embedding(served, embeds) for _ in range(3)],
        embedding(served, ("invalid_request",) if embeds == (None,) else embeds, input=[[999_999_999]]),
        completion(served, ("invalid_request",), temperature=9),
        completion(served, ("invalid_request",), n=0, stream=True),
        completion(served, ("unsupported",), colour=SECRET),
        completion(served, ("invalid_request",), max_tokens=SECRET),
        completion(served, ("model_not_found",), model=SECRET),
        embedding(served, ("model_not_found",), model=SECRET),
        completion(served, ("context_length_exceeded",), context_length=16, max_tokens=100),
        *[completion(served, ("deadline_exceeded",), max_tokens=150, timeout_s=0.02, stream=s) for s in (True, False)],
        Asked("/v1/chat/completions", b"{not json " + SECRET.encode(), "chat", ("invalid_request",)),
        completion(served, (None,), prompt=[f"{SECRET} one", "two", "three"]),
        *[completion(served, ("cancelled", None), max_tokens=190, stream=s) for s in (True, False) for _ in range(2)],
    ]
    for one in asked:
        if isinstance(one.body, dict):
            one.spans = len(one.body["prompt"]) if isinstance(one.body.get("prompt"), list) else 1
            one.leave = "cancelled" in one.errors
    return asked


def play(served: Served, asked: list[Asked]) -> None:
    shuffled = random.Random(1).sample(asked, len(asked))
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(lambda one: one.send(served), shuffled))
    served.settle(60)


def check(collector: Collector, asked: list[Asked]) -> None:
    """Of all that was asked, and of nothing else."""
    expected = {one.trace_id: one for one in asked}
    assert {span.trace_id for span in collector.requests} == set(expected)
    for trace_id, spans in itertools.groupby(
        sorted(collector.requests, key=lambda s: s.trace_id), lambda s: s.trace_id
    ):
        one, found = expected[trace_id], list(spans)
        assert len(found) == one.spans, one.body
        for span in found:
            check_span(collector, span, one)
    assert len({span.span_id for span in collector.spans}) == len(collector.spans)
    roots = {span.span_id for span in collector.requests}
    for span in collector.spans:
        assert span.kind == SERVER or span.parent_id in roots or span.name == "drivetrain.load"


def check_span(collector: Collector, span: SentSpan, one: Asked) -> None:
    error = span.attributes.get("error.type")
    assert error in one.errors, one.body
    assert span.status == (0 if error is None else ERROR)
    assert span.message == ""
    assert span.attributes["gen_ai.operation.name"] == one.operation
    model = span.attributes.get("gen_ai.request.model")
    assert span.name == (one.operation if model is None else f"{one.operation} {model}")
    assert (span.parent_id, span.state) == (one.span_id, "vendor=x")
    if not one.leave:
        assert (one.status == 200) == (error is None) or one.body.get("stream") is True
    check_phases(collector, span, error)
    if error is None and one.operation != "embeddings":
        body = one.body
        assert span.attributes["gen_ai.response.finish_reasons"] == ["length"] * body.get("n", 1)
        assert span.attributes["gen_ai.usage.output_tokens"] == body["max_tokens"] * body.get("n", 1)
        assert span.attributes["gen_ai.usage.input_tokens"] > 0


def check_phases(collector: Collector, span: SentSpan, error: str | None) -> None:
    """One after the other without a gap, inside the span; the last one has the error."""
    phases = EMBEDDING_PHASES if span.name.startswith("embeddings") else TEXT_PHASES
    children = collector.children(span)
    assert [child.name for child in children] == phases[: len(children)]
    if error is None:
        assert len(children) == len(phases)
    times = [span.began_ns, *(t for child in children for t in (child.began_ns, child.ended_ns)), span.ended_ns]
    assert times == sorted(times)
    assert all(before.ended_ns == after.began_ns for before, after in itertools.pairwise(children))
    assert not children or children[-1].ended_ns == span.ended_ns
    failed = [child.attributes.get("error.type") for child in children]
    assert failed == [None] * (len(children) - 1) + [error] * bool(children)
    assert [child.status for child in children] == [0 if error is None else ERROR for error in failed]


def check_metrics(collector: Collector) -> None:
    """They say what the spans say."""
    histograms = collector.histograms
    assert set(histograms) <= set(HISTOGRAMS)
    assert all(point.bounds == HISTOGRAMS[name][1] for name, points in histograms.items() for point in points)
    counted: dict[tuple[str, Any], int] = {}
    for point in histograms[REQUEST_DURATION]:
        key = (point.attributes["gen_ai.operation.name"], point.attributes.get("error.type"))
        counted[key] = counted.get(key, 0) + point.count
    spans: dict[tuple[str, Any], int] = {}
    for span in collector.requests:
        key = (span.attributes["gen_ai.operation.name"], span.attributes.get("error.type"))
        spans[key] = spans.get(key, 0) + 1
    assert counted == spans
    texts = [s for s in collector.requests if "error.type" not in s.attributes and not s.name.startswith("embeddings")]
    assert sum(point.count for point in histograms.get(TIME_TO_FIRST_TOKEN, [])) == len(texts)
    several = [span for span in texts if span.attributes["gen_ai.usage.output_tokens"] > 1]
    assert sum(point.count for point in histograms.get(TIME_PER_OUTPUT_TOKEN, [])) == len(several)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


@contextlib.contextmanager
def traced(collector: Collector, rig: Rig, **how: Any) -> Iterator[Served]:
    """When it is left, all has been sent."""
    with (
        open_tracer(collector.base, flush_s=20, **how) as tracer,
        serving(lambda: rig.open(max_waiting=256, tracer=tracer), tracer) as served,
    ):
        yield served


def test_every_request_of_a_mixed_load_has_its_span(rig: Rig, collector: Collector) -> None:
    with traced(collector, rig) as served:
        asked = mixed(served)
        play(served, asked)
        broken = [completion(served, ("engine_error",), stream=i % 2 == 0, n=1 + i % 3) for i in range(6)]
        with rig.fault(served.worker, 2, EngineFailed("it broke")):
            for one in broken:  # one by one: a step of a real engine is shared
                one.send(served)
            served.settle(60)
        engine = served.worker.metadata.engine
    check(collector, asked + broken)
    check_metrics(collector)
    assert any(span.attributes.get("error.type") == "cancelled" for span in collector.requests)
    assert SECRET.encode() not in b"".join(collector.raw)
    (load,) = [span for span in collector.spans if span.name == "drivetrain.load"]
    assert load.attributes["drivetrain.engine"] == engine


def test_who_finds_the_queue_full_has_a_span_too(collector: Collector) -> None:
    tracer = open_tracer(collector.base)
    worker = fake({"max_running": 1, "max_waiting": 0}, tracer, repeat=True, step_delay_s=0.005)
    with tracer, serving(worker, tracer) as served:
        holder = completion(served, ("cancelled",), max_tokens=900, stream=True)
        holder.leave = True
        with served.raw(60) as sock:
            sock.sendall(holder.raw)
            assert sock.recv(10)
            late = [completion(served, ("overloaded",), stream=i % 2 == 0) for i in range(6)]
            for one in late:
                one.send(served)
        served.settle(60)
    assert [one.status for one in late] == [429] * 6
    check(collector, [*late, holder])
    check_metrics(collector)
    overloaded = [span for span in collector.requests if span.attributes.get("error.type") == "overloaded"]
    assert all([c.name for c in collector.children(span)] == ["queue"] for span in overloaded)


def test_a_span_is_found_by_the_id_of_the_answer(collector: Collector) -> None:
    tracer = open_tracer(collector.base)
    with tracer, serving(fake(tracer=tracer), tracer) as served:
        _, talk = served.post("/v1/chat/completions", chat(served).body)
        _, several = served.post("/v1/completions", completion(served, prompt=["one", "two"]).body)
        streamed = served.events("/v1/completions", completion(served).body)[0]
    ids = {span.attributes["gen_ai.response.id"] for span in collector.requests}
    assert ids == {talk["id"], f"{several['id']}-0", f"{several['id']}-1", streamed["id"]}


def test_content_is_there_when_asked(collector: Collector) -> None:
    tracer = open_tracer(collector.base, content=True)
    with tracer, serving(fake(tracer=tracer, text="an answer"), tracer) as served:
        chat(served, temperature=0, ignore_eos=None, max_tokens=None).send(served)
    (span,) = collector.requests
    assert json.loads(span.attributes["gen_ai.input.messages"])[0]["parts"][0]["content"] == f"{SECRET} hello"
    assert json.loads(span.attributes["gen_ai.output.messages"])[0]["parts"][0]["content"] == "an answer"


def test_the_caller_decides_what_is_recorded(collector: Collector) -> None:
    parent = f"00-{'1' * 32}-{'2' * 16}"
    with open_tracer(collector.base) as tracer, serving(fake(tracer=tracer), tracer) as served:
        body = completion(served).body
        for header in (f"{parent}-00", f"{parent}-01", "bad", ""):
            assert served.request("POST", "/v1/completions", body, {"traceparent": header})[0] == 200
    assert [span.trace_id == "1" * 32 for span in collector.requests] == [True, False, False]
    assert sum(point.count for point in collector.histograms[REQUEST_DURATION]) == 4


def test_a_collector_that_is_down_or_hangs_is_not_felt(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    collector.hold.clear()
    for base in (collector.base, "http://127.0.0.1:1"):
        with open_tracer(base, flush_s=0.2) as tracer, serving(fake(tracer=tracer), tracer) as served:
            asked = [completion(served, stream=i % 2 == 0) for i in range(40)]
            began = time.monotonic()
            play(served, asked)
            assert [one.status for one in asked] == [200] * 40
            assert time.monotonic() - began < 20


@pytest.mark.parametrize("models", [["fake"], ["fake", "second=fake"]])
def test_serve_sends_what_is_left_before_it_ends(collector: Collector, models: list[str]) -> None:
    flags = ["--port", "0", "--otlp-endpoint", collector.base, "--trace-sample", "0.5"]
    with started(*models, *flags) as process:
        process.wait_ready()
        client = openai.OpenAI(base_url=f"{process.base}/v1", api_key="none", max_retries=0)
        parent = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
        client.completions.create(model="fake", prompt="x", max_tokens=3, extra_headers=parent)
        with pytest.raises(openai.BadRequestError):
            client.completions.create(model="fake", prompt="x", n=100, extra_headers=parent)
        client.close()
        process.process.send_signal(signal.SIGTERM)
        assert process.end()[0] == 0
    assert [span.attributes.get("error.type") for span in collector.requests] == [None, "invalid_request"]
    assert {span.name for span in collector.requests} == {"text_completion fake"}
    assert sum(point.count for point in collector.histograms[REQUEST_DURATION]) == 2


@pytest.mark.parametrize("flag", [["--trace-content"], ["--trace-sample", "0.5"]])
def test_flags_that_would_do_nothing_are_refused(flag: list[str]) -> None:
    with started("fake", "--port", "0", *flag) as process:
        code, errors = process.end()
    assert code != 0
    assert "--otlp-endpoint" in errors

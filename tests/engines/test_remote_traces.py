"""Traces through a worker in front of other servers: what those do for a request is below the request's own span."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from remote_rigs import PATIENT, SECRET, Asked, ends, error, says, scripted, stream, usage, worker_at

from drivetrain.telemetry.otel import open_tracer
from drivetrain.telemetry.tracing import GenAiTracer
from drivetrain.worker.worker import EngineWorker
from otlp_collector import Collector, SentSpan, collecting
from recorded_spans import RecordingTracer
from server.serving import Served, fake, serving

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello?"}]}
HELLO = stream(says("Hello"), ends(), usage(3, 1))
PARENT = f"00-{'1' * 32}-{'2' * 16}-01"
OWN = {"host", "connection", "accept", "content-type", "content-length", "authorization"}
"""What every request to an upstream has."""


@pytest.fixture
def here() -> Iterator[Collector]:
    with collecting() as made:
        yield made


@pytest.fixture
def there() -> Iterator[Collector]:
    with collecting() as made:
        yield made


@contextlib.contextmanager
def upstream(collector: Collector) -> Iterator[Served]:
    """When it is left, all has been sent."""
    with open_tracer(collector.base, flush_s=20) as tracer, serving(fake(tracer=tracer, repeat=True), tracer) as served:
        yield served


def in_front_of(served: Served, tracer: GenAiTracer | None = None) -> AbstractAsyncContextManager[EngineWorker]:
    return worker_at(f"{served.base}/v1", model=served.model, timeouts=PATIENT, tracer=tracer)


def test_one_trace_over_two_servers(here: Collector, there: Collector) -> None:
    """The client's span, below it ours, below that those of the upstream: one a choice."""
    trace_id, caller = secrets.token_hex(16), secrets.token_hex(8)
    headers = {"traceparent": f"00-{trace_id}-{caller}-01", "tracestate": "vendor=x"}
    with (
        upstream(there) as far,
        open_tracer(here.base, flush_s=20) as tracer,
        serving(lambda: in_front_of(far, tracer), tracer) as near,
    ):
        asked = {"model": near.model, "max_tokens": 4, "ignore_eos": True}
        ways = {
            "chat": ("/v1/chat/completions", asked | CHAT | {"stream": True}, 1),
            "text_completion": ("/v1/completions", asked | {"prompt": "x", "n": 3}, 3),
            "embeddings": ("/v1/embeddings", {"model": near.model, "input": ["x", "y"]}, 1),
        }
        for path, body, _ in ways.values():
            assert near.request("POST", path, body, headers)[0] == 200
    ours = {str(span.attributes["gen_ai.operation.name"]): span for span in here.requests}
    assert ours.keys() == ways.keys()
    for operation, (_, _, times) in ways.items():
        span = ours[operation]
        assert place_of(span) == (trace_id, caller, "vendor=x")
        theirs = [found for found in there.requests if found.parent_id == span.span_id]
        assert [place_of(found) for found in theirs] == [(trace_id, span.span_id, "vendor=x")] * times
        assert all(span.began_ns <= found.began_ns <= found.ended_ns for found in theirs)
    assert len(there.requests) == 5


def place_of(span: SentSpan) -> tuple[str, str, str]:
    return span.trace_id, span.parent_id, span.state


async def test_a_trace_that_begins_here(here: Collector, there: Collector) -> None:
    with upstream(there) as far, open_tracer(here.base, flush_s=20) as tracer:
        async with in_front_of(far, tracer) as worker:
            await worker.generate(prompt="x", max_tokens=2)
    (ours,), (theirs,) = here.requests, there.requests
    assert ours.parent_id == ""
    assert (theirs.trace_id, theirs.parent_id) == (ours.trace_id, ours.span_id)


async def test_what_is_not_recorded_here_is_not_recorded_there(here: Collector, there: Collector) -> None:
    with upstream(there) as far, open_tracer(here.base, sample=0.0, flush_s=20) as tracer:
        async with in_front_of(far, tracer) as worker:
            await worker.generate(prompt="x", max_tokens=2)
    assert not here.requests
    assert not there.requests


async def test_without_a_tracer_the_callers_trace_goes_through(there: Collector) -> None:
    with upstream(there) as far:
        async with in_front_of(far) as worker:
            context = {"TraceParent": PARENT, "tracestate": "vendor=x"}
            await worker.generate(prompt="x", max_tokens=2, trace_context=context)
            await worker.embed("x", trace_context=context)
            await worker.generate(prompt="x", max_tokens=2)
            await worker.embed("x")
    through = [place_of(span) == ("1" * 32, "2" * 16, "vendor=x") for span in there.requests]
    assert through == [True, True, False, False]
    assert [span.parent_id for span in there.requests[2:]] == ["", ""]


@pytest.mark.parametrize("traced", [True, False])
async def test_no_other_header_of_a_client_goes_up(traced: bool) -> None:
    private = {"cookie": "a=b", "x-private": "1", "baggage": "user=me", "authorization": "Bearer mine", "b3": "0"}
    context = {"traceparent": PARENT, "tracestate": "vendor=x"}
    tracer = RecordingTracer() if traced else None
    async with scripted(HELLO) as there:

        def ask_twice() -> None:
            with serving(lambda: worker_at(there.url, tracer=tracer), tracer) as near:
                for headers in (private, private | context):
                    body = {"model": near.model, **CHAT}
                    assert near.request("POST", "/v1/chat/completions", body, headers)[0] == 200

        await asyncio.to_thread(ask_twice)
    sent = [context_of(asked) for asked in there.generations]
    assert sent == ([{}, context] if tracer is None else [span.context for span in tracer.requests])
    assert {asked.headers["authorization"] for asked in there.asked} == {f"Bearer {SECRET}"}
    assert all(context_of(asked) == {} for asked in there.asked if asked not in there.generations)


def context_of(asked: Asked) -> dict[str, str]:
    """What it has that not every request to an upstream has."""
    return {name: value for name, value in asked.headers.items() if name not in OWN}


@pytest.mark.parametrize(
    "given",
    [
        {"traceparent": f"{PARENT}\r\nx-evil: 1"},
        {"traceparent": "nonsense", "tracestate": "vendor=x"},
        {"traceparent": PARENT.replace("00-", "ff-")},
        {"tracestate": "vendor=x"},
        {"x-private": "1"},
    ],
)
async def test_what_is_no_trace_context_goes_nowhere(given: dict[str, str]) -> None:
    async with scripted(HELLO) as there, worker_at(there.url) as worker:
        assert (await worker.generate(**CHAT, trace_context=given)).text == "Hello"
        assert (await worker.generate(**CHAT, trace_context=given | {"traceparent": PARENT})).text == "Hello"
    sent = [context_of(asked) for asked in there.generations]
    assert sent == [{}, {"traceparent": PARENT} | {name: given[name] for name in given if name == "tracestate"}]


async def test_every_attempt_is_in_the_trace() -> None:
    tracer = RecordingTracer()
    async with scripted(error(503), HELLO) as there, worker_at(there.url, tracer=tracer) as worker:
        await worker.generate(**CHAT)
    (span,) = tracer.requests
    assert [context_of(asked) for asked in there.generations] == [span.context] * 2

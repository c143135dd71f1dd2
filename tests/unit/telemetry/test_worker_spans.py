"""What a worker tells of each request, whatever its ending: one span, closed once, with its phases."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from drivetrain.core.engine import EmbedItem, EngineRequest, ModelSpec, StepSink, WeightsFormat
from drivetrain.core.errors import (
    Cancelled,
    ContextOverflow,
    DeadlineExceeded,
    DrivetrainError,
    EngineFailed,
    InvalidRequest,
    NotReady,
    Overloaded,
)
from drivetrain.core.events import Delta
from drivetrain.core.request import GenerateRequest
from drivetrain.engines.base.channel import StepChannel
from drivetrain.engines.fake import FakeEngine, Script
from drivetrain.telemetry import genai
from drivetrain.telemetry.content import MAX_CHARS
from drivetrain.worker.settings import Settings
from drivetrain.worker.stream import EventStream
from drivetrain.worker.tracing import asked
from drivetrain.worker.worker import EngineWorker
from probe import engine_of
from recorded_spans import RecordingTracer, checked

PHASES = ["queue", "prepare", "prefill", "decode"]
CHAT: dict[str, Any] = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]}
PARENT = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
LONG = Script(repeat=True, step_delay_s=0.002)


def worker(script: Script, tracer: RecordingTracer, **settings: Any) -> EngineWorker:
    spec = ModelSpec(name="toy", path=Path(), format=WeightsFormat.NONE)
    return EngineWorker(FakeEngine(script), spec, Settings(**settings), tracer=tracer)


async def test_a_finished_request() -> None:
    tracer = RecordingTracer()
    async with worker(Script(text="one two three"), tracer) as made:
        result = await made.generate(
            **CHAT, max_tokens=5, temperature=0.5, seed=7, n=2, request_id="mine", stop=["zzz"],
            trace_context=PARENT,
        )  # fmt: skip
    (span,) = tracer.requests
    checked(span, PHASES)
    assert span.name == "chat toy"
    assert span.parent == PARENT
    assert span.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "drivetrain",
        "gen_ai.request.model": "toy",
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.seed": 7,
        "gen_ai.request.choice.count": 2,
        "gen_ai.response.id": "mine",
        "gen_ai.response.model": "toy",
        "gen_ai.response.finish_reasons": tuple(choice.finish_reason for choice in result.choices),
        "gen_ai.usage.input_tokens": result.usage.prompt_tokens,
        "gen_ai.usage.output_tokens": result.usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "drivetrain.engine": "fake",
    }
    values = {name: seconds for name, seconds, _ in span.measures}
    assert set(values) == set(genai.HISTOGRAMS)
    first = next(began for name, began, *_ in span.children if name == "decode")
    assert span.began_ns is not None
    assert values[genai.TIME_TO_FIRST_TOKEN] == pytest.approx((first - span.began_ns) / 1e9, abs=1e-6)


def test_what_was_asked_is_told_by_the_names_of_the_conventions() -> None:
    stated = {"top_p": 0.5, "top_k": 3, "frequency_penalty": 1.0, "presence_penalty": -1.0, "n": 1}
    assert asked(GenerateRequest(prompt="x", stop=("zzz",), **stated)) == {  # type: ignore[arg-type] # of this test
        "gen_ai.request.top_p": 0.5,
        "gen_ai.request.top_k": 3.0,
        "gen_ai.request.frequency_penalty": 1.0,
        "gen_ai.request.presence_penalty": -1.0,
    }
    assert asked(GenerateRequest(prompt="x")) == {}


async def test_an_answer_that_nothing_is_sampled_for_has_no_decoding() -> None:
    tracer = RecordingTracer()
    async with worker(Script(text="ab"), tracer) as made:
        await made.generate(prompt="x", max_tokens=0, echo=True)
    checked(tracer.requests[0], PHASES[:3])
    assert [name for name, *_ in tracer.requests[0].measures] == [genai.REQUEST_DURATION]


async def closed_by_its_reader(made: EngineWorker) -> None:
    async with made.stream(prompt="x", max_tokens=900) as stream:
        async for event in stream:
            if isinstance(event, Delta):
                break


async def never_read(made: EngineWorker) -> None:
    await made.stream(prompt="x").aclose()


async def cancelled(made: EngineWorker) -> None:
    began = asyncio.Event()

    async def read() -> None:
        async for event in made.stream(prompt="x", max_tokens=900):
            if isinstance(event, Delta):
                began.set()

    task = asyncio.create_task(read())
    await began.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def expired(made: EngineWorker) -> None:
    with pytest.raises(DeadlineExceeded):
        await made.generate(prompt="x", max_tokens=3900, timeout_s=0.8)


async def too_long(made: EngineWorker) -> None:
    with pytest.raises(ContextOverflow):
        await made.generate(prompt="word " * 3000, max_tokens=2000)


async def too_hot(made: EngineWorker) -> None:
    with pytest.raises(InvalidRequest):
        await made.generate(prompt="x", temperature=9)


async def no_field(made: EngineWorker) -> None:
    with pytest.raises(InvalidRequest):
        await made.generate(prompt="x", colour="red")  # type: ignore[call-arg]


async def too_many(made: EngineWorker) -> None:
    async with made.stream(prompt="x", max_tokens=900) as running:
        await anext(running)
        with pytest.raises(Overloaded):
            await made.generate(prompt="x")


@pytest.mark.parametrize(
    ("way", "phases", "error"),
    [
        (closed_by_its_reader, PHASES, "cancelled"),
        (never_read, PHASES[:1], "cancelled"),
        (cancelled, PHASES, "cancelled"),
        (expired, PHASES, "deadline_exceeded"),
        (too_long, PHASES[:2], "context_length_exceeded"),
        (too_hot, [], "invalid_request"),
        (no_field, [], "unsupported"),
        (too_many, PHASES[:1], "overloaded"),
    ],
)
async def test_an_ending_that_is_none_of_a_good_answer(
    way: Callable[[EngineWorker], Any], phases: list[str], error: str
) -> None:
    tracer = RecordingTracer()
    async with worker(LONG, tracer, max_running=1, max_waiting=0) as made:
        await way(made)
    span = next(span for span in tracer.requests if span.ends == [error] and len(span.children) == len(phases))
    checked(span, phases, error)
    assert all(span.ends == [error] or way is too_many for span in tracer.requests)
    assert all(name == genai.REQUEST_DURATION for name, *_ in span.measures)
    assert len(tracer.requests) == (2 if way is too_many else 1)


async def test_a_fault_of_the_engine_is_that_of_the_phase_in_which_it_came() -> None:
    tracer = RecordingTracer()
    async with worker(Script(fault=RuntimeError("the secret of a library"), fault_at_step=2), tracer) as made:
        with pytest.raises(EngineFailed):
            await made.generate(prompt="x", n=2)
    checked(tracer.requests[0], PHASES, "engine_error")
    assert tracer.requests[0].attributes["gen_ai.response.finish_reasons"] == ("error", "error")


async def rest_of(stream: EventStream) -> None:
    async for _ in stream:
        pass


async def test_a_request_that_waits_when_the_worker_stops() -> None:
    tracer = RecordingTracer()
    made = worker(LONG, tracer, max_running=1, drain_s=0.05)
    await made.start()
    running = made.stream(prompt="x", max_tokens=900)
    async for event in running:
        if isinstance(event, Delta):
            break
    waiting = asyncio.create_task(made.generate(prompt="x", max_tokens=900))
    while not made.status.waiting:
        await asyncio.sleep(0.001)
    await made.stop()
    for ended in await asyncio.gather(rest_of(running), waiting, return_exceptions=True):
        assert isinstance(ended, Cancelled | NotReady)
    checked(tracer.requests[0], PHASES, "cancelled")
    checked(tracer.requests[1], PHASES[:1], "not_ready")


async def test_an_error_says_which_request_it_ended() -> None:
    async with worker(Script(fault=RuntimeError(), fault_at_step=0), RecordingTracer()) as made:
        for values in ({"prompt": "x"}, {"prompt": "x", "temperature": 9}):
            with pytest.raises(DrivetrainError) as caught:
                await made.generate(**values, request_id="mine")
            assert caught.value.request_id == "mine"


async def test_embeddings() -> None:
    tracer = RecordingTracer()
    async with worker(Script(), tracer) as made:
        found = await made.embed(["one", "two"], trace_context=PARENT)
        with pytest.raises(InvalidRequest):
            await made.embed([])
        with pytest.raises(InvalidRequest):
            await made.embed([[999_999_999]])
    done, refused, late = tracer.requests
    checked(done, ["queue", "prepare", "embed"])
    assert done.name == "embeddings toy"
    assert done.parent == PARENT
    assert done.attributes["gen_ai.usage.input_tokens"] == found.usage.prompt_tokens
    assert done.attributes["gen_ai.embeddings.dimension.count"] == len(found.vectors[0])
    checked(refused, [], "invalid_request")
    checked(late, ["queue", "prepare"], "invalid_request")


class AskedEngine(FakeEngine):
    """Keeps the trace context of everything that it is asked for."""

    def __init__(self) -> None:
        super().__init__(Script(text="ab"))
        self.contexts: list[Mapping[str, str] | None] = []

    def generate(self, request: EngineRequest, sink: StepSink) -> StepChannel:
        self.contexts.append(request.trace_context)
        return super().generate(request, sink)

    async def embed(self, items: Sequence[EmbedItem]) -> list[tuple[float, ...]]:
        self.contexts += [item.trace_context for item in items]
        return await super().embed(items)


@pytest.mark.parametrize("recorded", [True, False, None])
async def test_the_engine_hears_where_in_the_trace_it_is(recorded: bool | None) -> None:
    """Below the request's span; without one, where the caller is."""
    given = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01", "cookie": "a=b"}
    engine, tracer = AskedEngine(), None if recorded is None else RecordingTracer(recorded=recorded)
    spec = ModelSpec(name="toy", path=Path(), format=WeightsFormat.NONE)
    async with EngineWorker(engine, spec, Settings(), tracer=tracer) as made:
        for context in (given, {"traceparent": "nonsense"}, None):
            await made.generate(prompt="x", trace_context=context)
            await made.embed("x", trace_context=context)
    if tracer is None:
        assert engine.contexts == [{"traceparent": given["traceparent"]}] * 2 + [None] * 4
    else:
        assert engine.contexts == [span.context for span in tracer.requests]


async def test_embeddings_that_take_too_long() -> None:
    tracer = RecordingTracer()
    async with worker(Script(), tracer) as made:
        engine: Any = engine_of(made)
        engine.embed = lambda items: asyncio.sleep(30)
        with pytest.raises(DeadlineExceeded):
            await made.embed("x", timeout_s=0.05)
    checked(tracer.requests[0], ["queue", "prepare", "embed"], "deadline_exceeded")


async def test_a_span_that_nobody_records_is_closed_and_counted_and_no_more() -> None:
    tracer = RecordingTracer(recorded=False, content=True)
    async with worker(Script(text="ab"), tracer) as made:
        await made.generate(prompt="x")
    (span,) = tracer.requests
    assert span.ends == [None]
    assert len(span.measures) == 3
    assert not span.children
    assert set(span.attributes) == {"gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model"}


async def test_content_only_when_asked() -> None:
    said = {}
    for content in (False, True):
        tracer = RecordingTracer(content=content)
        async with worker(Script(text="an answer"), tracer) as made:
            await made.generate(**CHAT, stop=["zzz"], temperature=0)
            with pytest.raises(InvalidRequest):
                await made.generate(**CHAT, stop=["zzz"], temperature=9)
        said[content] = [(repr(span), span) for span in tracer.requests]
    for text, span in said[False]:
        assert not span.message
        assert not any(part in text for part in ("Hello", "brief", "answer", "zzz"))
    (_, span), (_, refused) = said[True]
    assert json.loads(str(span.attributes["gen_ai.input.messages"])) == [
        {"role": "system", "parts": [{"type": "text", "content": "Be brief."}]},
        {"role": "user", "parts": [{"type": "text", "content": "Hello"}]},
    ]
    assert json.loads(str(span.attributes["gen_ai.output.messages"])) == [
        {"role": "assistant", "parts": [{"type": "text", "content": "an answer"}], "finish_reason": "stop"}
    ]
    assert span.attributes["gen_ai.request.stop_sequences"] == ("zzz",)
    assert "temperature" in refused.message


async def test_calls_and_tools_are_content_too() -> None:
    tools = [{"type": "function", "function": {"name": "secret", "parameters": {"type": "object"}}}]
    call = '<tool_call>\n{"name": "secret", "arguments": {}}\n</tool_call>'
    spans = []
    for content in (False, True):
        tracer = RecordingTracer(content=content)
        async with worker(Script(text=call), tracer) as made:
            await made.generate(**CHAT, tools=tools, temperature=0)
            await made.generate(**CHAT, tools=tools, tool_choice="none", temperature=0)
        spans += tracer.requests
    hidden, _, told, untold = spans
    assert hidden.attributes["gen_ai.response.finish_reasons"] == ("tool_calls",)
    assert "secret" not in repr(hidden)
    (said,) = json.loads(str(told.attributes["gen_ai.output.messages"]))
    assert said["finish_reason"] == "tool_call"
    (part,) = said["parts"]
    assert (part["type"], part["name"], part["arguments"]) == ("tool_call", "secret", {})
    assert part["id"]
    (defined,) = json.loads(str(told.attributes["gen_ai.tool.definitions"]))
    assert (defined["type"], defined["name"]) == ("function", "secret")
    assert "gen_ai.tool.definitions" not in untold.attributes


async def test_what_an_error_quotes_is_cut() -> None:
    tracer = RecordingTracer(content=True)
    error = InvalidRequest("x" * 100_000)
    tracer.refuse(genai.Operation.CHAT, error, began_ns=0)
    assert len(tracer.requests[0].message) == MAX_CHARS + 1


@pytest.mark.parametrize("given", ["00-abc", {"traceparent": None}, {"traceparent": "x", "tracestate": None}, {1: "x"}])
async def test_a_trace_context_that_is_none_is_no_parent(given: Any) -> None:
    """A request with one is refused, and has its span all the same; a tracer is never handed it."""
    tracer = RecordingTracer()
    async with worker(Script(), tracer) as made:
        with pytest.raises(InvalidRequest, match="trace_context"):
            await made.generate(prompt="x", trace_context=given)
        await made.embed("x", trace_context=given)
    assert [(span.parent, span.ends) for span in tracer.requests] == [(None, ["invalid_request"]), (None, [None])]


async def test_a_load_that_fails_and_one_that_does_not() -> None:
    tracer = RecordingTracer()
    async with worker(Script(), tracer):
        pass
    with pytest.raises(DrivetrainError):
        await worker(Script(load_error=RuntimeError("no")), tracer).start()
    good, bad = tracer.spans
    assert (good.name, good.ends, bad.ends) == ("drivetrain.load", [None], ["load_failed"])
    assert good.attributes == {"gen_ai.request.model": "toy", "drivetrain.engine": "fake"}

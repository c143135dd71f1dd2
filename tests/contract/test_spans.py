"""The same spans on every engine: each request has one, complete, and it tells what the caller saw."""

from __future__ import annotations

import pytest

from contract.mixed_load import Outcome, mixed_load
from contract.rigs import PROMPT, Rig
from drivetrain.core.errors import (
    Cancelled,
    ContextOverflow,
    DeadlineExceeded,
    EngineFailed,
    InvalidRequest,
    Overloaded,
    Unsupported,
)
from drivetrain.telemetry import genai
from recorded_spans import RecordedSpan, RecordingTracer, checked

PHASES = ("queue", "prepare", "prefill", "decode")
PARENT = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
CERTAIN = (Cancelled, DeadlineExceeded, EngineFailed, Overloaded)
"""How some request of the load surely ends, beside those that are refused at once."""
USAGE = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "gen_ai.usage.cache_read.input_tokens")


async def test_every_request_of_a_mixed_load_has_its_span(rig: Rig) -> None:
    tracer = RecordingTracer()
    async with mixed_load(rig, tracer=tracer) as (worker, seen):
        spans = {span.parent["traceparent"]: span for span in tracer.requests if span.parent is not None}
        assert len(tracer.requests) == len(spans) == len(seen.outcomes)
        for outcome in seen.outcomes:
            span = spans[outcome.traceparent]
            checked(span, phases_of(span, outcome), outcome.code)
            assert span.name == f"text_completion {worker.metadata.name}"
            tells_what_was_seen(span, outcome, worker.metadata.engine)
        (load,) = [span for span in tracer.spans if span not in tracer.requests]
        assert (load.name, load.ends) == ("drivetrain.load", [None])
        assert seen.endings.keys() > {"finished", *(error.code for error in CERTAIN)}


def phases_of(span: RecordedSpan, outcome: Outcome) -> tuple[str, ...]:
    """As far as the caller saw it come: refused at once, without a place, before the engine had it, before a token."""
    if "gen_ai.response.id" not in span.attributes:
        assert outcome.code in {InvalidRequest.code, ContextOverflow.code}
        return ()
    if outcome.code == Overloaded.code:
        return PHASES[:1]
    if not outcome.choices:
        return PHASES[:2]
    return PHASES if outcome.usage.completion_tokens else PHASES[:3]


def tells_what_was_seen(span: RecordedSpan, outcome: Outcome, engine: str) -> None:
    told, usage = span.attributes, outcome.usage
    if not span.children:
        assert not {*USAGE, "gen_ai.response.finish_reasons"} & set(told)
        return
    assert told["gen_ai.response.id"] == outcome.request["request_id"]
    assert told["drivetrain.engine"] == engine
    if outcome.choices:
        assert [told[name] for name in USAGE] == [usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens]
        reasons = tuple(str(choice.finish_reason or "error") for choice in outcome.choices)
        assert told["gen_ai.response.finish_reasons"] == reasons
    else:
        assert not {*USAGE, "gen_ai.response.finish_reasons"} & set(told)
    measured = {name for name, *_ in span.measures}
    if outcome.code is not None:
        assert measured == {genai.REQUEST_DURATION}
    elif usage.completion_tokens > 1:
        assert measured == set(genai.HISTOGRAMS)
    else:
        assert measured == {genai.REQUEST_DURATION, genai.TIME_TO_FIRST_TOKEN}


async def test_a_span_is_over_when_its_answer_is(rig: Rig) -> None:
    """Not only when the engine has let go of it, nor when the worker stops."""
    tracer = RecordingTracer()
    async with rig.open(tracer=tracer) as worker:
        await worker.generate(prompt=PROMPT, max_tokens=2, ignore_eos=True)
        assert [span.ends for span in tracer.spans] == [[None], [None]]


async def test_embeddings_have_theirs(rig: Rig) -> None:
    tracer = RecordingTracer()
    async with rig.open(tracer=tracer) as worker:
        if worker.capabilities.embeddings:
            found = await worker.embed([PROMPT, "x"], trace_context=PARENT)
            span = checked(tracer.requests[0], ("queue", "prepare", "embed"))
            assert span.attributes["gen_ai.usage.input_tokens"] == found.usage.prompt_tokens
            assert span.attributes["gen_ai.embeddings.dimension.count"] == len(found.vectors[0])
        else:
            with pytest.raises(Unsupported):
                await worker.embed(PROMPT, trace_context=PARENT)
            span = checked(tracer.requests[0], (), Unsupported.code)
        assert (span.name, span.parent) == (f"embeddings {worker.metadata.name}", PARENT)
        assert len(tracer.requests) == 1

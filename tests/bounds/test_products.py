"""Products: what a request multiplies is judged before anything of it is computed."""

from __future__ import annotations

import gc
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from bounds.attack import MAX_STALL_S, victim
from drivetrain.core.budget import answer_bytes, check_answers, check_vectors
from drivetrain.core.capabilities import Capabilities, Limits
from drivetrain.core.engine import ModelSpec, WeightsFormat
from drivetrain.core.errors import ContextOverflow, InvalidRequest
from drivetrain.core.request import GenerateRequest
from drivetrain.core.results import FinishReason
from drivetrain.engines.fake import FakeEngine, Script
from drivetrain.worker.settings import Settings
from drivetrain.worker.worker import EngineWorker

SPEC = ModelSpec(name="fake", path=Path(), format=WeightsFormat.NONE)


def worker(context_length: int = 16_384, **settings: Any) -> EngineWorker:
    script = Script(text="The quick brown fox. ", repeat=True, context_length=context_length, ids_per_step=50)
    return EngineWorker(FakeEngine(script), SPEC, Settings(**settings))


def test_choices_times_tokens_times_alternatives_are_refused_at_once() -> None:
    """It kept 0.3 GB, took 1.3 GB at its peak, and stopped the loop for 10 s."""
    body = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}], "n": 16, "max_tokens": 8000}
    with victim(script={"context_length": 16_384, "repeat": True}) as server:
        before = server.reset()
        status, answer = server.post("/v1/chat/completions", {**body, "logprobs": True, "top_logprobs": 20})
        after = server.figures()
        assert status == 400
        assert answer["error"]["param"] == "max_tokens"
        for said in ("8,000", "n 16", "logprobs 20", "MB", "lower"):
            assert said in answer["error"]["message"]
        assert after.stall_cpu_s < MAX_STALL_S
        assert after.peak_bytes < before.peak_bytes + 20 * 2**20
        server.works()


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "logprobs": True, "top_logprobs": 20}),
        ("completions", {"prompt": "Hi", "logprobs": 20}),
    ],
    ids=["chat", "completions"],
)
def test_a_large_answer_is_spelled_beside_the_loop(path: str, asked: dict[str, Any]) -> None:
    body = {"model": "fake", "n": 2, "max_tokens": 4000, **asked}
    with victim(script={"context_length": 16_384, "repeat": True}) as server:
        before = server.reset()
        status, answer = server.post(f"/v1/{path}", body)
        after = server.figures()
    assert status == 200
    assert answer["usage"]["completion_tokens"] == 8000
    for choice in answer["choices"]:
        assert len(choice["logprobs"]["content"] if "messages" in asked else choice["logprobs"]["tokens"]) == 4000
    assert after.stall_cpu_s < MAX_STALL_S
    assert after.peak_bytes < before.peak_bytes + 2 * 128 * 2**20


def test_prompts_times_choices_are_judged_together() -> None:
    body = {"model": "fake", "prompt": ["Hi"] * 64, "n": 16, "max_tokens": 4000}
    with victim(script={"repeat": True}) as server:
        before = server.reset()
        status, answer = server.post("/v1/completions", body)
        assert (status, answer["error"]["param"]) == (400, "prompt")
        assert "64 prompts, max_tokens 4,000, n 16" in answer["error"]["message"]
        assert server.figures().peak_bytes < before.peak_bytes + 20 * 2**20
        status, answer = server.post("/v1/completions", {**body, "max_tokens": 4})
        assert status == 200, answer
        assert len(answer["choices"]) == 64 * 16


@pytest.mark.parametrize(
    "asked",
    [
        {"max_tokens": 400, "n": 4, "logprobs": 20},
        {"max_tokens": 1000, "n": 4, "logprobs": 0},
        {"max_tokens": 4000, "n": 4},
        {"max_tokens": 1, "echo": True, "prompt_logprobs": 5},
    ],
    ids=["alternatives", "logprobs", "text", "echo"],
)
async def test_what_is_kept_of_an_answer_is_within_what_was_judged(asked: dict[str, Any]) -> None:
    prompt = "x" * 1000
    async with worker() as open_worker:
        await open_worker.generate(prompt=prompt, max_tokens=1)
        gc.collect()
        tracemalloc.start()
        try:
            result = await open_worker.generate(prompt=prompt, **asked)
            gc.collect()
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert len(result.choices) == asked.get("n", 1)
    judged = answer_bytes(GenerateRequest(prompt=prompt, **asked), asked["max_tokens"], len(prompt))
    assert kept < judged + 100_000


async def test_an_answer_that_nobody_bounded_ends_when_it_is_full() -> None:
    """It would fill the context: 16,000 tokens with 20 alternatives, in two choices."""
    async with worker(max_answer_bytes=4_000_000) as open_worker:
        result = await open_worker.generate(prompt="Hi", n=2, logprobs=20)
    request = GenerateRequest(prompt="Hi", n=2, logprobs=20)
    for choice in result.choices:
        assert choice.finish_reason is FinishReason.LENGTH
        assert 100 < len(choice.token_ids) < 1000
        assert answer_bytes(request, len(choice.token_ids), 2) <= 4_000_000
    async with worker() as open_worker:
        whole = await open_worker.generate(prompt="Hi")
    assert whole.usage.total_tokens == 16_384


async def test_the_default_length_gives_way_too() -> None:
    async with worker(max_answer_bytes=400_000, max_tokens=2000) as open_worker:
        assert (await open_worker.generate(prompt="Hi", logprobs=20)).usage.completion_tokens < 200
        assert (await open_worker.generate(prompt="Hi")).usage.completion_tokens == 2000
        with pytest.raises(InvalidRequest, match=r"max_tokens 2,000, logprobs 20: .* the limit is 400,000"):
            await open_worker.generate(prompt="Hi", logprobs=20, max_tokens=2000)


async def test_an_echo_counts() -> None:
    async with worker(max_answer_bytes=1_500_000) as open_worker:
        for prompt in ({"prompt": "x" * 2000}, {"prompt_token_ids": (65,) * 2000}):
            with pytest.raises(InvalidRequest, match=r"echo of 2,00\d tokens, prompt_logprobs 20"):
                await open_worker.generate(**prompt, max_tokens=0, echo=True, prompt_logprobs=20)
            made = await open_worker.generate(**prompt, max_tokens=0, echo=True, prompt_logprobs=0)
            assert made.choices[0].logprobs is not None
            assert len(made.choices[0].logprobs) in {2000, 2001}  # a text begins with a BOS


async def test_what_is_more_than_the_context_is_refused_as_that() -> None:
    async with worker(context_length=4096) as open_worker:
        with pytest.raises(ContextOverflow):
            await open_worker.generate(prompt="Hi", max_tokens=2**31 - 1)


async def test_stops_of_ids_are_bounded_by_what_they_spell() -> None:
    """An automaton over a million characters took 0.3 GB."""
    async with worker(max_stop_chars=10) as open_worker:
        with pytest.raises(InvalidRequest, match=r"stop_sequences spells 200 characters; the limit is 160"):
            await open_worker.generate(prompt="Hi", max_tokens=1, stop_sequences=[[65] * 100] * 2)
        await open_worker.generate(prompt="Hi", max_tokens=1, stop_sequences=[[65] * 80] * 2)


def test_an_omitted_length_counts_in_a_list() -> None:
    capabilities = Capabilities(parameters=frozenset(), context_length=131_072, limits=Limits())
    check_answers([GenerateRequest(prompt="Hi")], capabilities)
    check_answers([GenerateRequest(prompt="Hi", max_tokens=16)] * 64, capabilities)
    with pytest.raises(
        InvalidRequest, match=r"64 prompts, max_tokens the rest of the context: .* so lower one of them"
    ):
        check_answers([GenerateRequest(prompt="Hi")] * 64, capabilities)


def test_vectors_count() -> None:
    check_vectors(1000, 4096, Limits())
    check_vectors(2048, None, Limits())
    with pytest.raises(InvalidRequest, match=r"2,048 vectors of 16,384 numbers: .* so lower input"):
        check_vectors(2048, 16_384, Limits())


def test_judging_costs_nothing() -> None:
    capabilities = Capabilities(parameters=frozenset(), context_length=131_072)
    requests = [GenerateRequest(prompt_token_ids=(65,) * 100_000, max_tokens=16)] * 64
    began = time.thread_time()
    check_answers(requests, capabilities)
    assert time.thread_time() - began < 0.1

"""The remote engine against real models: what comes through is what the engine behind it says, id by id."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from remote_rigs import PATIENT, engine_of, worker_at

from contract.llamacpp_server import LlamaCppServer, running
from contract.native_rig import NativeRig
from contract.rigs import LlamaCppRig
from drivetrain.core.errors import Unsupported
from drivetrain.core.results import Result
from drivetrain.store.store import Store
from drivetrain.worker.worker import EngineWorker
from server.serving import Served, fake, serving

CHAT: list[dict[str, str]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Say <|im_end|> and </s> and 🌍."},
]
ASKING: list[dict[str, Any]] = [
    {"prompt": "Once upon a time", "temperature": 0, "ignore_eos": True, "max_tokens": 40},
    {"messages": CHAT, "temperature": 0, "max_tokens": 40},
    {"prompt_token_ids": [70, 71, 72], "temperature": 0.9, "seed": 5, "n": 2, "max_tokens": 30, "ignore_eos": True},
    {"prompt": "héllo 🌍", "temperature": 1.0, "seed": 1, "top_k": 50, "logprobs": 3, "max_tokens": 40},
    {"prompt": "x", "temperature": 0, "logprobs": 0, "echo": True, "max_tokens": 8, "logit_bias": {75: 3.5}},
    {"prompt": "a b c " * 30, "context_length": 64, "overflow": "truncate_left", "max_tokens": 5, "temperature": 0},
    {"prompt": "x", "temperature": 0, "ignore_eos": True, "min_tokens": 5, "max_tokens": 9, "repetition_penalty": 1.3},
    {"prompt": "x", "temperature": 1.5, "seed": 9, "max_tokens": 60, "suppress_tokens": [65, 66], "top_p": 0.9},
]


def same(here: Result, there: Result) -> None:
    assert here.prompt_token_ids == there.prompt_token_ids
    assert here.truncated_tokens == there.truncated_tokens
    assert here.usage.prompt_tokens == there.usage.prompt_tokens
    assert here.usage.completion_tokens == there.usage.completion_tokens
    for ours, theirs in zip(here.choices, there.choices, strict=True):
        assert ours.token_ids == theirs.token_ids
        assert (ours.text, ours.finish_reason) == (theirs.text, theirs.finish_reason)
        assert (ours.logprobs is None) == (theirs.logprobs is None)
        for a, b in zip(ours.logprobs or (), theirs.logprobs or (), strict=True):
            assert (a.token_id, a.bytes, a.text_offset) == (b.token_id, b.bytes, b.text_offset)
            assert a.logprob == pytest.approx(b.logprob, abs=1e-6)
            assert [(t.token_id, t.bytes) for t in a.top] == [(t.token_id, t.bytes) for t in b.top]


@pytest.fixture(scope="module")
def native_server(checkpoint: Callable[[str], Path]) -> Iterator[Served]:
    with serving(lambda: NativeRig(checkpoint).open()) as served:
        yield served


@asynccontextmanager
async def at(served: Served) -> AsyncIterator[EngineWorker]:
    async with worker_at(f"{served.base}/v1", model=served.model, timeouts=PATIENT) as worker:
        yield worker


@pytest.mark.parametrize("asked", ASKING, ids=lambda asked: "-".join(asked)[:40])
async def test_a_tiny_model_says_the_same_through_our_server(native_server: Served, asked: dict[str, Any]) -> None:
    async def directly() -> Result:
        return await native_server.worker.generate(**asked)

    there = await asyncio.to_thread(native_server.on_loop, directly())
    async with at(native_server) as worker:
        same(await worker.generate(**asked), there)
        assert worker.capabilities.context_length == native_server.worker.capabilities.context_length
        assert worker.metadata.eos_ids == native_server.worker.metadata.eos_ids


async def test_stops_by_id_and_by_text_are_ours(native_server: Served) -> None:
    base: dict[str, Any] = {"prompt": "Once", "temperature": 0, "ignore_eos": True, "max_tokens": 40}
    async with at(native_server) as worker:
        free = (await worker.generate(**base)).choices[0]
        by_id = (await worker.generate(**base, stop_token_ids=[free.token_ids[7]])).choices[0]
        kept = await worker.generate(**base, stop_token_ids=[free.token_ids[7]], include_stop_str_in_output=True)
        by_text = (await worker.generate(**base, stop=[free.text[5:8]])).choices[0]
        many = list(range(240, 256))
        by_many = (await worker.generate(**base, stop_token_ids=[*many[1:], free.token_ids[7]])).choices[0]
    end = free.token_ids.index(free.token_ids[7]) + 1
    assert by_id.token_ids == free.token_ids[:end]
    assert by_id.matched_stop == free.token_ids[7]
    assert kept.text.startswith(by_id.text)
    assert by_text.text == free.text[: free.text.index(free.text[5:8])]
    assert by_many.token_ids == free.token_ids[: len(by_many.token_ids)]


async def test_cancelling_frees_the_slot_of_the_upstream_within_a_second() -> None:
    with serving(fake(repeat=True, step_delay_s=0.01)) as served:
        async with at(served) as worker:
            stream = worker.stream(prompt="x", max_tokens=2000, ignore_eos=True)
            for _ in range(5):
                await stream.__anext__()
            assert served.worker.status.running == 1
            await stream.aclose()
            async with asyncio.timeout(1):
                while served.worker.status.running:
                    await asyncio.sleep(0.005)


async def test_their_defaults_and_stops_are_ours() -> None:
    settings = {"temperature": 0.25, "family": "vicuna"}
    with serving(fake(settings, text="one </s> two USER: three")) as served:
        async with at(served) as worker:
            assert worker.metadata.sampling["temperature"][1] == 0.25
            here = await worker.generate(messages=CHAT)
            ids = await worker.tokenize(messages=CHAT)
            there = await asyncio.to_thread(served.on_loop, served.worker.tokenize(messages=CHAT))
    assert ids == there
    assert here.choices[0].finish_reason == "stop"


async def test_a_text_tier_in_front_of_a_text_tier() -> None:
    """A Drivetrain that has no ids itself is found to be one, and used as text; it refuses to show ids of its own."""
    from remote_rigs import ends, says, scripted, stream, usage

    async with scripted(stream(says("far "), says("away"), ends(), usage(7, 2))) as upstream:
        spec_url = upstream.url

        @asynccontextmanager
        async def middle() -> AsyncIterator[EngineWorker]:
            async with worker_at(spec_url, timeouts=PATIENT) as worker:
                yield worker

        server = serving(middle)
        served: Served = await asyncio.to_thread(server.__enter__)
        try:
            async with at(served) as worker:
                assert not worker.capabilities.tokens
                result = await worker.generate(messages=CHAT, max_tokens=5)
                assert result.text == "far away"
                assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (7, 2)
            body = {"model": served.model, "messages": CHAT, "return_token_ids": True}
            error = await asyncio.to_thread(served.refused, "/v1/chat/completions", body)
            assert error["param"] == "return_token_ids"
            error = await asyncio.to_thread(served.refused, "/tokenize", {"prompt": "x"})
            assert error["param"] == "prompt"
        finally:
            await asyncio.to_thread(server.__exit__, None, None, None)


@pytest.fixture(scope="module")
def llamacpp(smollm2: str) -> Iterator[LlamaCppServer]:
    with running(Store().pull(smollm2).path) as server:
        yield server


@pytest.mark.slow
async def test_llamacpps_server_says_through_us_what_it_says(llamacpp: LlamaCppServer) -> None:
    """The prompt's ids are those of our own engine for GGUF files; the answer's are those that the server tells."""
    asked: list[dict[str, Any]] = [
        {"prompt": "The capital of France is"},
        {"messages": CHAT},
        {"messages": [{"role": "user", "content": "Answer with three emoji."}]},
        {"prompt": "Once upon a time", "logprobs": 4},
    ]
    async with (
        LlamaCppRig(whole=True).open() as direct,
        worker_at(llamacpp.url, model="smollm2", timeouts=PATIENT) as worker,
    ):
        assert worker.metadata.eos_ids == direct.metadata.eos_ids
        assert worker.metadata.vocab_size == direct.metadata.vocab_size
        for request in asked:
            here = await worker.generate(**request, temperature=0, max_tokens=32, seed=1)
            ids = (await direct.generate(**request, max_tokens=1)).prompt_token_ids
            assert here.prompt_token_ids == ids
            told = await asyncio.to_thread(llamacpp.complete, ids, 32)
            ours = here.choices[0]
            assert list(ours.token_ids) == told["tokens"]
            assert ours.text == told["content"]
            assert ours.finish_reason == ("stop" if told["stop_type"] == "eos" else "length")
            assert here.usage.completion_tokens == told["tokens_predicted"]
    shown = json.dumps([str(worker.metadata), str(worker.capabilities)])
    assert ".gguf" not in shown


@pytest.mark.slow
async def test_one_seed_gives_one_answer_at_llamacpp_and_in_our_own_engine_for_it(llamacpp: LlamaCppServer) -> None:
    asked: dict[str, Any] = {"prompt": "Once upon a time", "temperature": 0.9, "ignore_eos": True, "max_tokens": 32}
    async with (
        LlamaCppRig(whole=True).open() as direct,
        worker_at(llamacpp.url, model="smollm2", timeouts=PATIENT) as worker,
    ):
        told = set()
        for seed in (1, 2, -(2**63), 2**63 - 1):
            here, there = await worker.generate(**asked, seed=seed), await direct.generate(**asked, seed=seed)
            assert here.choices[0].token_ids == there.choices[0].token_ids
            told.add(here.choices[0].token_ids)
    assert len(told) == 4


@pytest.mark.slow
async def test_half_characters_lose_no_id_at_llamacpp(llamacpp: LlamaCppServer) -> None:
    prompt = "🌍🚀🎉 🌍🚀🎉 🌍🚀🎉 🌍🚀🎉"
    async with worker_at(llamacpp.url, model="smollm2", timeouts=PATIENT) as worker:
        whole = await worker.generate(prompt=prompt, temperature=0, max_tokens=24, ignore_eos=True)
        assert len(whole.choices[0].token_ids) == 24
        text = await worker.detokenize(whole.choices[0].token_ids)
        assert text.startswith(whole.text)
        assert any(ord(c) > 0xFFFF for c in whole.text)
        for limit in range(1, 6):
            short = await worker.generate(prompt=prompt, temperature=0, max_tokens=limit, ignore_eos=True)
            assert short.choices[0].token_ids == whole.choices[0].token_ids[:limit]
            assert short.choices[0].finish_reason == "length"
            assert whole.text.startswith(short.text)


@pytest.mark.slow
async def test_llamacpps_slot_is_free_after_a_cancel(llamacpp: LlamaCppServer) -> None:
    async with worker_at(llamacpp.url, model="smollm2", timeouts=PATIENT) as worker:
        stream = worker.stream(prompt="x", max_tokens=1500, ignore_eos=True)
        for _ in range(5):
            await stream.__anext__()
        assert await asyncio.to_thread(llamacpp.busy) == 1
        await stream.aclose()
        await asyncio.to_thread(llamacpp.settle, 5.0)
        for name in ("min_tokens", "presence_penalty"):
            asked: dict[str, Any] = {name: 1}
            with pytest.raises(Unsupported) as caught:
                await worker.generate(prompt="x", **asked)
            assert caught.value.param == name
        assert not engine_of(worker).busy

"""S1, the Guanaco generation: its contract on ours, each of its defects asserted absent. Tiny real LLaMA weights."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import drivetrain
from drivetrain import Delta
from drivetrain.core.errors import EngineFailed
from drivetrain.core.results import FinishReason
from drivetrain.worker.worker import EngineWorker
from probe import engine_of

ALPACA = "Below is an instruction.\n\n### Instruction:\nSay something.\n\n### Response:"
ASK: dict[str, Any] = {"prompt": ALPACA, "max_tokens": 40}


@pytest.fixture(scope="module")
async def worker(checkpoint: Callable[[str], Path]) -> AsyncIterator[EngineWorker]:
    async with drivetrain.Worker.open(checkpoint("llama"), engine="transformers", family="guanaco") as made:
        yield made


def model_of(worker: EngineWorker) -> Any:
    engine: Any = engine_of(worker)
    return engine._loaded.model


async def test_the_defaults_of_the_family_hold_and_a_request_overrides_them(worker: EngineWorker) -> None:
    origins = worker.metadata.sampling
    assert origins["repetition_penalty"] == ("family", 1.7)
    assert origins["top_k"] == ("family", 1)
    assert worker.metadata.stop == ("###",)
    by_default = await worker.generate(**ASK, seed=1)
    spelled = await worker.generate(**ASK, temperature=0, repetition_penalty=1.7, seed=2)
    assert by_default.choices[0].token_ids == spelled.choices[0].token_ids
    other = await worker.generate(**ASK, repetition_penalty=1.0, temperature=0)
    assert other.choices[0].token_ids != by_default.choices[0].token_ids
    drawn = {(await worker.generate(**ASK, temperature=1.0, top_k=0, seed=s)).text for s in range(3)}
    assert len(drawn) > 1


async def test_the_length_defaults_to_512(worker: EngineWorker) -> None:
    limit = worker.capabilities.context_length
    result = await worker.generate(prompt=ALPACA, ignore_eos=True, stop=[])
    room = limit - result.usage.prompt_tokens
    assert result.usage.completion_tokens == min(512, room)


async def test_chat_has_the_human_form_and_the_answer_is_what_follows_the_marker(worker: EngineWorker) -> None:
    result = await worker.generate(messages=[{"role": "user", "content": "Hi"}], max_tokens=8, stop=[])
    prompt = worker.info.tokenizer.decode(result.prompt_token_ids or ())
    assert "### Human: Hi" in prompt
    assert prompt.endswith("### Assistant:")
    assert "### Assistant:" not in result.text


async def test_the_old_cumulative_text_is_the_joined_deltas(worker: EngineWorker) -> None:
    cumulative = [""]
    async for event in worker.stream(**ASK):
        if isinstance(event, Delta):
            cumulative.append(cumulative[-1] + event.text)
    whole = await worker.generate(**ASK)
    assert cumulative[-1] == whole.text
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(cumulative))


async def test_stop_strings_and_stop_ids_are_both_applied(worker: EngineWorker) -> None:
    """There, the string was read and then overwritten by the id."""
    free = (await worker.generate(**ASK, stop=[], ignore_eos=True)).choices[0]
    text_stop, id_stop = free.text[6:8], free.token_ids[20]
    both = (await worker.generate(**ASK, stop=[text_stop], stop_token_ids=[id_stop], ignore_eos=True)).choices[0]
    assert both.finish_reason is FinishReason.STOP
    assert both.text == free.text[: free.text.find(text_stop)]
    only_id = (await worker.generate(**ASK, stop=["\x00"], stop_token_ids=[id_stop], ignore_eos=True)).choices[0]
    assert only_id.matched_stop == id_stop


async def test_token_id_0_stops(worker: EngineWorker) -> None:
    unknown = worker.info.tokenizer.id_of("<unk>")
    assert unknown in worker.metadata.eos_ids
    result = await worker.generate(**ASK, logit_bias={unknown: 100.0})
    assert result.choices[0].token_ids == (unknown,)
    assert result.choices[0].finish_reason is FinishReason.STOP


async def test_generation_runs_once(worker: EngineWorker) -> None:
    """There, the whole-text form ran it twice, once in a thread that nobody read."""
    calls = 0

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1

    handle = model_of(worker).register_forward_pre_hook(count)
    try:
        await worker.generate(**{**ASK, "max_tokens": 9}, ignore_eos=True, stop=[])
    finally:
        handle.remove()
    assert calls == 9


async def test_text_comes_while_the_model_still_works(worker: EngineWorker) -> None:
    """There, the streaming form blocked until all was generated."""
    engine: Any = engine_of(worker)
    before = engine.steps_run
    handle = model_of(worker).register_forward_pre_hook(lambda *_: time.sleep(0.02))
    try:
        async for event in worker.stream(**ASK, ignore_eos=True, stop=[]):
            if isinstance(event, Delta):
                assert engine.steps_run - before < 20
                assert engine.busy
                break
    finally:
        handle.remove()


@pytest.mark.slow
async def test_a_pause_of_more_than_ten_seconds_does_not_end_the_stream(worker: EngineWorker) -> None:
    steps = 0

    def pause(*_: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == 3:
            time.sleep(10.5)

    handle = model_of(worker).register_forward_pre_hook(pause)
    try:
        result = await worker.generate(**{**ASK, "max_tokens": 6}, ignore_eos=True, stop=[])
    finally:
        handle.remove()
    assert result.usage.completion_tokens == 6
    assert result.metrics.total_s > 10


async def test_nothing_is_printed(worker: EngineWorker, capfd: pytest.CaptureFixture[str]) -> None:
    await worker.generate(**ASK)
    await worker.generate(messages=[{"role": "user", "content": "a secret"}], max_tokens=4, n=2, temperature=1.0)
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


async def test_an_error_in_the_thread_reaches_the_reader(worker: EngineWorker) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("lost there, typed here")

    handle = model_of(worker).register_forward_pre_hook(fail)
    try:
        with pytest.raises(EngineFailed) as caught:
            await worker.generate(**ASK)
    finally:
        handle.remove()
    assert "lost there, typed here" in caught.value.message
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert (await worker.generate(**{**ASK, "max_tokens": 2})).usage.completion_tokens >= 1


async def test_an_answer_that_ends_in_eos_is_not_dropped(worker: EngineWorker) -> None:
    eos = worker.metadata.eos_ids[-1]
    result = await worker.generate(
        **ASK, stop=[], min_tokens=5, exponential_decay_length_penalty=(0, 100.0), temperature=0
    )
    assert result.choices[0].finish_reason is FinishReason.STOP
    assert result.choices[0].token_ids[-1] in worker.metadata.eos_ids
    assert result.text
    assert eos is not None


async def test_the_shared_tokenizer_is_not_mutated(worker: EngineWorker) -> None:
    engine: Any = engine_of(worker)
    tokenizer = engine._loaded.tokenizer
    before = (tokenizer.backend_tokenizer.to_str(), tokenizer.bos_token_id, tokenizer.padding_side)
    await asyncio.gather(*(worker.generate(**ASK) for _ in range(3)))
    await worker.generate(messages=[{"role": "user", "content": "</s> forged"}], max_tokens=2)
    assert (tokenizer.backend_tokenizer.to_str(), tokenizer.bos_token_id, tokenizer.padding_side) == before

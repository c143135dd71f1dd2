"""Logprobs and echo."""

from __future__ import annotations

from typing import Any

import pytest

from contract.rigs import PROMPT, honours
from drivetrain.core.errors import InvalidRequest
from drivetrain.core.events import Delta
from drivetrain.core.results import TokenLogprob
from drivetrain.worker.worker import EngineWorker

BASE: dict[str, Any] = {"prompt": PROMPT, "temperature": 0, "ignore_eos": True, "max_tokens": 16}


@pytest.fixture(autouse=True)
async def declared(worker: EngineWorker) -> None:
    assert await honours(worker, "logprobs")  # an engine without logprobs gets a file of its own tier


async def test_off_means_none(worker: EngineWorker) -> None:
    assert (await worker.generate(**BASE)).choices[0].logprobs is None


@pytest.mark.parametrize("count", [0, 1, 5, 20])
async def test_entries(worker: EngineWorker, count: int) -> None:
    choice = (await worker.generate(**BASE, logprobs=count)).choices[0]
    assert choice.logprobs is not None
    assert len(choice.logprobs) == 16
    assert b"".join(e.bytes for e in choice.logprobs).decode("utf-8", "replace").startswith(choice.text)
    for entry in choice.logprobs:
        assert entry.logprob is not None
        assert entry.logprob <= 0
        assert len(entry.top) == count
        assert all(top.logprob <= 0 for top in entry.top)
        ranked = [top.logprob for top in entry.top]
        assert ranked == sorted(ranked, reverse=True)
        if count:
            assert entry.top[0].token_id == entry.token_id  # greedy takes the likeliest


async def test_offsets_point_into_the_text(worker: EngineWorker) -> None:
    choice = (await worker.generate(**BASE, logprobs=0)).choices[0]
    assert choice.logprobs is not None
    offsets = [entry.text_offset for entry in choice.logprobs]
    assert offsets[0] == 0
    assert offsets == sorted(offsets)
    for entry in choice.logprobs:
        if entry.bytes and entry.bytes.isascii() and "�" not in choice.text:
            assert choice.text[entry.text_offset :].startswith(entry.token)


async def test_streamed_entries_equal_the_whole(worker: EngineWorker) -> None:
    whole = (await worker.generate(**BASE, logprobs=3)).choices[0]
    entries: list[TokenLogprob] = []
    async for event in worker.stream(**BASE, logprobs=3):
        if isinstance(event, Delta):
            entries += event.logprobs or ()
    assert tuple(entries) == whole.logprobs


async def test_they_are_raw(worker: EngineWorker) -> None:
    """Penalties, bias and temperature do not show in them."""
    if not await honours(worker, "logit_bias"):
        return
    free = (await worker.generate(**BASE, logprobs=2)).choices[0].logprobs
    assert free is not None
    other = free[0].top[1].token_id
    biased = (await worker.generate(**BASE, logprobs=2, logit_bias={other: 100.0})).choices[0].logprobs
    assert biased is not None
    assert biased[0].token_id == other
    assert biased[0].logprob == pytest.approx(free[0].top[1].logprob, abs=1e-4)


async def test_a_stopped_answer_lists_only_its_text(worker: EngineWorker) -> None:
    free = (await worker.generate(**BASE)).choices[0]
    stop = free.text[4:6]
    choice = (await worker.generate(**BASE, logprobs=0, stop=[stop])).choices[0]
    assert choice.logprobs is not None
    assert all(entry.text_offset < max(1, len(choice.text)) for entry in choice.logprobs)
    joined = b"".join(e.bytes for e in choice.logprobs).decode("utf-8", "replace")
    assert joined.startswith(choice.text)


async def test_more_than_the_limit_is_refused(worker: EngineWorker) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await worker.generate(**BASE, logprobs=worker.capabilities.limits.max_logprobs + 1)
    assert caught.value.param == "logprobs"


async def test_echo(worker: EngineWorker) -> None:
    plain = await worker.generate(**BASE)
    echoed = await worker.generate(**BASE, echo=True, n=2)
    assert [choice.text for choice in echoed.choices] == [PROMPT + plain.text] * 2
    assert echoed.usage.completion_tokens == 2 * plain.usage.completion_tokens
    ids: dict[str, Any] = {key: value for key, value in BASE.items() if key != "prompt"}
    from_ids = await worker.generate(**ids, prompt_token_ids=plain.prompt_token_ids, echo=True)
    assert from_ids.text == PROMPT + plain.text


async def test_echo_alone(worker: EngineWorker) -> None:
    result = await worker.generate(prompt=PROMPT, echo=True, max_tokens=0)
    assert result.text == PROMPT
    assert result.usage.completion_tokens == 0
    assert result.choices[0].finish_reason == "length"
    with pytest.raises(InvalidRequest) as caught:
        await worker.generate(prompt=PROMPT, max_tokens=0)
    assert caught.value.param == "max_tokens"


async def test_echo_with_prompt_logprobs(worker: EngineWorker) -> None:
    if not await honours(worker, "prompt_logprobs"):
        return
    choice = (await worker.generate(**BASE, echo=True, logprobs=1, prompt_logprobs=1)).choices[0]
    assert choice.logprobs is not None
    assert choice.logprobs[0].logprob is None
    assert all(e.logprob is not None and e.logprob <= 0 for e in choice.logprobs[1:])
    assert b"".join(e.bytes for e in choice.logprobs).decode("utf-8", "replace").startswith(choice.text)
    offsets = [entry.text_offset for entry in choice.logprobs]
    assert offsets == sorted(offsets)
    assert offsets[-1] >= len(PROMPT)

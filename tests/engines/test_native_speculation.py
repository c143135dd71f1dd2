"""Prompt look-up: the ids, logprobs and endings are those without it, in fewer steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from contract.native_rig import NativeRig, stepper_of
from drivetrain.core.results import FinishReason, Result
from drivetrain.worker.worker import EngineWorker

AGAIN = [*range(5, 13)] * 6
ASKED: list[dict[str, Any]] = [
    {"prompt_token_ids": AGAIN, "temperature": 0, "max_tokens": 60},
    {"prompt_token_ids": AGAIN, "temperature": 0, "max_tokens": 60, "logprobs": 3},
    {"prompt_token_ids": AGAIN, "seed": 7, "max_tokens": 60, "temperature": 0.05, "logprobs": 0},
    {"prompt_token_ids": AGAIN, "seed": 8, "max_tokens": 40, "n": 3, "temperature": 0.3},
    {"prompt_token_ids": AGAIN, "temperature": 0, "max_tokens": 60, "repetition_penalty": 1.3},
    {"prompt_token_ids": AGAIN, "temperature": 0, "max_tokens": 1},
    {"prompt_token_ids": AGAIN, "temperature": 0, "max_tokens": 30, "prompt_logprobs": 1, "echo": True},
    {"prompt": "Hello", "seed": 1, "max_tokens": 40, "temperature": 1.0},
]


@pytest.fixture(scope="module")
def rig(checkpoint: Callable[[str], Path]) -> NativeRig:
    return NativeRig(checkpoint, "qwen3")  # with random weights, it repeats itself


@pytest.fixture
async def plain(rig: NativeRig) -> AsyncIterator[EngineWorker]:
    async with rig.open() as made:
        yield made


@pytest.fixture
async def ngram(rig: NativeRig) -> AsyncIterator[EngineWorker]:
    async with rig.open(options={"speculative": "ngram"}) as made:
        yield made


def said(result: Result) -> list[tuple[Any, ...]]:
    return [
        (c.token_ids, c.text, c.finish_reason, [pytest.approx(one.logprob, abs=1e-4) for one in c.logprobs or ()])
        for c in result.choices
    ]


@pytest.mark.parametrize("asked", ASKED, ids=str)
async def test_alone(asked: dict[str, Any], plain: EngineWorker, ngram: EngineWorker) -> None:
    assert said(await ngram.generate(**asked)) == said(await plain.generate(**asked))


async def test_together(plain: EngineWorker, ngram: EngineWorker) -> None:
    answers = [await asyncio.gather(*(worker.generate(**asked) for asked in ASKED)) for worker in (plain, ngram)]
    assert [said(result) for result in answers[1]] == [said(result) for result in answers[0]]


async def test_repeats_take_fewer_steps_and_are_counted(rig: NativeRig, ngram: EngineWorker) -> None:
    before = rig.steps(ngram)
    result = await ngram.generate(prompt_token_ids=AGAIN, temperature=0, max_tokens=200, ignore_eos=True)
    counts = ngram.status.counts
    assert counts.accepted_tokens is not None
    assert counts.drafted_tokens is not None
    assert rig.steps(ngram) - before == 200 - counts.accepted_tokens
    assert 25 < counts.accepted_tokens <= counts.drafted_tokens
    assert result.usage.completion_tokens == 200


async def test_without_it_nothing_is_counted(plain: EngineWorker) -> None:
    await plain.generate(prompt_token_ids=AGAIN, temperature=0, max_tokens=20)
    assert (plain.status.counts.drafted_tokens, plain.status.counts.accepted_tokens) == (None, None)


async def test_a_stop_in_the_middle_of_a_draft(plain: EngineWorker, ngram: EngineWorker) -> None:
    free = await plain.generate(prompt_token_ids=AGAIN, temperature=0, max_tokens=60, ignore_eos=True)
    ids = free.choices[0].token_ids
    for at in range(20, 30):
        asked: dict[str, Any] = {"prompt_token_ids": AGAIN, "temperature": 0, "max_tokens": 60, "ignore_eos": True}
        asked["stop_token_ids"] = [ids[at]]
        stopped = [await worker.generate(**asked) for worker in (plain, ngram)]
        assert said(stopped[1]) == said(stopped[0])
        assert stopped[1].choices[0].finish_reason is FinishReason.STOP


async def test_with_little_memory(rig: NativeRig, plain: EngineWorker) -> None:
    """Drafts take no block from anybody, and who gives way comes back."""
    asked = [
        {"prompt_token_ids": [k + 20, *AGAIN], "temperature": 0, "max_tokens": 80, "ignore_eos": True} for k in range(6)
    ]
    async with rig.open(options={"speculative": "ngram", "context_length": 256}) as tight:
        scheduler = stepper_of(tight).scheduler
        scheduler.pool.groups[0].num_blocks, scheduler._headroom = 2 * scheduler.pool.blocks_for(256), 1
        answers = [await asyncio.gather(*(worker.generate(**one) for one in asked)) for worker in (plain, tight)]
        assert tight.status.counts.preemptions > 0
    assert [said(result) for result in answers[1]] == [said(result) for result in answers[0]]

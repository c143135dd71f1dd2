"""Prompt look-up: the ids, logprobs and endings are those without it, in fewer steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from contract.native_rig import NativeRig
from drivetrain.core.results import FinishReason, Result
from drivetrain.worker.worker import EngineWorker
from probe import stepper_of

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
    assert counts.refused_tokens is not None
    assert rig.steps(ngram) - before == 200 - counts.accepted_tokens
    assert counts.accepted_tokens > 25
    assert 0 < counts.refused_tokens < 200
    assert result.usage.completion_tokens == 200


async def test_without_it_nothing_is_counted(plain: EngineWorker) -> None:
    await plain.generate(prompt_token_ids=AGAIN, temperature=0, max_tokens=20)
    assert (plain.status.counts.accepted_tokens, plain.status.counts.refused_tokens) == (None, None)


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
    """Nobody gives way for a draft, and who gives way comes back."""
    asked: list[dict[str, Any]] = [
        {"prompt_token_ids": [k + 20, *AGAIN], "temperature": 0, "max_tokens": 80, "ignore_eos": True} for k in range(6)
    ]
    async with rig.open(options={"speculative": "ngram", "context_length": 256}) as tight:
        scheduler = stepper_of(tight).scheduler
        scheduler.pool.groups[0].num_blocks, scheduler._headroom = 2 * scheduler.pool.blocks_for(256), 1
        answers = [await asyncio.gather(*(worker.generate(**one) for one in asked)) for worker in (plain, tight)]
        assert tight.status.counts.preemptions > 0
    assert [said(result) for result in answers[1]] == [said(result) for result in answers[0]]


async def test_a_draft_that_makes_nan_costs_the_request_nothing(plain: EngineWorker, ngram: EngineWorker) -> None:
    """NaN behind an id reaches it through attention. The answer is computed again, without drafts."""
    asked: dict[str, Any] = {"prompt_token_ids": AGAIN, "temperature": 0, "max_tokens": 60, "ignore_eos": True}
    wanted = await plain.generate(**asked)
    stepper = stepper_of(ngram)
    poisoned: list[int] = []

    def poison(module: Any, inputs: Any, output: Any) -> Any:
        running = stepper.scheduler.running
        if not any(sequence.num_sampled for sequence in running) or output.shape[1] == 1 or poisoned:
            return output
        poisoned.append(output.shape[1])
        output[0, -1] = float("nan")
        return output

    handle = stepper.runner.model.get_input_embeddings().register_forward_hook(poison)
    try:
        result = await ngram.generate(**asked)
    finally:
        handle.remove()
    assert poisoned
    assert said(result) == said(wanted)
    assert ngram.status.counts.preemptions == 1
    assert said(await ngram.generate(**asked)) == said(wanted)

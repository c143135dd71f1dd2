"""Seeds, n, temperature and the other parameters: honoured as declared."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from contract.rigs import PROMPT, Rig, honours
from drivetrain.core.capabilities import Reproducibility
from drivetrain.core.errors import InvalidRequest
from drivetrain.core.events import Delta
from drivetrain.worker.worker import EngineWorker

BASE: dict[str, Any] = {"prompt": PROMPT, "ignore_eos": True, "max_tokens": 24}


async def test_greedy_is_the_same_each_time(worker: EngineWorker) -> None:
    first = await worker.generate(**BASE, temperature=0)
    second = await worker.generate(**BASE, temperature=0, seed=99)
    assert first.choices[0].token_ids == second.choices[0].token_ids


async def test_same_seed_same_text_different_seeds_differ(rig: Rig, worker: EngineWorker) -> None:
    if not await honours(worker, "seed"):
        return
    texts = [(await worker.generate(**BASE, temperature=1.0, seed=seed)).text for seed in (1, 1, 2, 3)]
    assert texts[0] == texts[1]
    assert not rig.seeded or len(set(texts)) > 1


async def test_what_is_exact_is_the_same_to_the_last_bit_alone_and_in_a_crowd(worker: EngineWorker) -> None:
    if not await honours(worker, "reproducibility", "seed"):
        assert worker.capabilities.reproducibility is Reproducibility.BEST_EFFORT
        return
    assert worker.capabilities.reproducibility is Reproducibility.EXACT
    asked = {**BASE, "temperature": 1.3, "seed": 7, "logprobs": 2, "reproducibility": "exact"}
    alone = await worker.generate(**asked)
    others = ({**BASE, "prompt": PROMPT * size, "temperature": 1.0, "seed": size} for size in range(1, 5))
    crowd = await asyncio.gather(*(worker.generate(**each) for other in others for each in (other, asked)))
    assert [result.choices for result in crowd[1::2]] == [alone.choices] * 4


async def test_n_gives_n_choices_and_choice_i_is_seed_plus_i(rig: Rig, worker: EngineWorker) -> None:
    if not await honours(worker, "n", "seed"):
        return
    result = await worker.generate(**BASE, temperature=1.0, seed=7, n=3)
    assert [choice.index for choice in result.choices] == [0, 1, 2]
    assert result.usage.completion_tokens == 3 * 24
    for i in range(3):
        alone = await worker.generate(**BASE, temperature=1.0, seed=7 + i)
        assert alone.text == result.choices[i].text or not rig.exact


async def test_streamed_choices_route_by_index(rig: Rig, worker: EngineWorker) -> None:
    if not await honours(worker, "n"):
        return
    whole = await worker.generate(**BASE, temperature=1.0, seed=7, n=3)
    texts = ["", "", ""]
    async for event in worker.stream(**BASE, temperature=1.0, seed=7, n=3):
        if isinstance(event, Delta):
            texts[event.index] += event.text
    assert all(texts)
    if rig.exact:
        assert texts == [choice.text for choice in whole.choices]


@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1, -(2**63)])
async def test_every_64_bit_seed_is_a_seed(worker: EngineWorker, seed: int) -> None:
    if not await honours(worker, "seed", "n"):
        return
    result = await worker.generate(**BASE, temperature=1.0, seed=seed, n=2)
    assert result.usage.completion_tokens == 48


async def test_logit_bias_decides(worker: EngineWorker) -> None:
    if not await honours(worker, "logit_bias"):
        return
    wanted = (await worker.generate(**BASE, temperature=0)).choices[0].token_ids[0] + 1
    result = await worker.generate(**{**BASE, "max_tokens": 3}, temperature=0, logit_bias={wanted: 100.0})
    assert result.choices[0].token_ids == (wanted,) * 3


async def test_banned_ids_are_not_sampled(worker: EngineWorker) -> None:
    if not await honours(worker, "bad_words_ids", "suppress_tokens", "begin_suppress_tokens"):
        return
    free = (await worker.generate(**BASE, temperature=0)).choices[0].token_ids
    for ban in ({"suppress_tokens": [free[0]]}, {"bad_words_ids": [[free[0]]]}):
        result = await worker.generate(**BASE, temperature=0, **ban)
        assert free[0] not in result.choices[0].token_ids
    result = await worker.generate(**BASE, temperature=0, begin_suppress_tokens=[free[0]])
    assert result.choices[0].token_ids[0] != free[0]


async def test_penalties_change_what_is_said(worker: EngineWorker) -> None:
    if not await honours(worker, "repetition_penalty", "presence_penalty", "frequency_penalty", "no_repeat_ngram_size"):
        return
    base: dict[str, Any] = {**BASE, "max_tokens": 60}
    free = (await worker.generate(**base, temperature=0)).choices[0].token_ids
    strong = (await worker.generate(**base, temperature=0, repetition_penalty=10.0)).choices[0].token_ids
    assert strong != free
    result = (await worker.generate(**base, temperature=0, no_repeat_ngram_size=1)).choices[0].token_ids
    assert len(set(result)) == len(result)


DRY = ("dry_multiplier", "dry_base", "dry_allowed_length", "dry_range", "dry_sequence_breakers")


async def ids_of_the_prompt(worker: EngineWorker) -> tuple[int, ...]:
    ids = (await worker.generate(prompt=PROMPT, max_tokens=1)).prompt_token_ids
    assert ids
    return ids


async def test_dry_breaks_a_loop_unless_it_may_not_see_it(worker: EngineWorker) -> None:
    if not await honours(worker, *DRY, "logit_bias"):
        return
    full_stop = (await ids_of_the_prompt(worker))[-1]
    asked: dict[str, Any] = {**BASE, "temperature": 0, "logit_bias": {full_stop: 60.0}}
    loop = (full_stop,) * 24
    assert (await worker.generate(**asked)).choices[0].token_ids == loop
    dry: dict[str, Any] = {"dry_multiplier": 100.0, "dry_base": 2.0, "dry_sequence_breakers": []}
    ids = (await worker.generate(**asked, **dry)).choices[0].token_ids
    assert ids[:2] == loop[:2]  # with the prompt's, the third is the first to repeat a sequence of two
    assert ids[2] != full_stop
    assert loop[:4] not in [ids[i : i + 4] for i in range(24)]
    assert (await worker.generate(**asked, **dry)).choices[0].token_ids == ids
    blind: list[dict[str, Any]] = [
        {"dry_multiplier": 0.0}, {"dry_range": 2}, {"dry_allowed_length": 30}, {"dry_sequence_breakers": [".", "\n"]},
    ]  # fmt: skip
    for change in blind:
        assert (await worker.generate(**asked, **{**dry, **change})).choices[0].token_ids == loop, change


async def test_dry_sees_the_prompt(worker: EngineWorker) -> None:
    """What would repeat a sequence of it is not said, however likely it is made."""
    if not await honours(worker, *DRY, "logit_bias"):
        return
    once = await ids_of_the_prompt(worker)
    likely = once[-1]
    asked: dict[str, Any] = {"prompt_token_ids": [*once, *once[:-1]], "temperature": 0, "max_tokens": 1}
    asked["logit_bias"] = {likely: 60.0}
    dry: dict[str, Any] = {"dry_multiplier": 100.0, "dry_sequence_breakers": []}
    assert (await worker.generate(**asked)).choices[0].token_ids == (likely,)
    assert (await worker.generate(**asked, **dry)).choices[0].token_ids != (likely,)
    assert (await worker.generate(**asked, **dry, dry_range=5)).choices[0].token_ids == (likely,)


async def test_xtc_excludes_the_likeliest_after_the_other_cut_offs(worker: EngineWorker) -> None:
    if not await honours(worker, "xtc_probability", "xtc_threshold", "seed"):
        return
    greedy = (await worker.generate(**BASE, temperature=0)).choices[0].token_ids
    always: dict[str, Any] = {"xtc_probability": 1.0, "xtc_threshold": 1e-6}
    for seed in range(4):
        asked: dict[str, Any] = {**BASE, "temperature": 1.0, "seed": seed}
        free = (await worker.generate(**asked)).choices[0].token_ids
        ids = (await worker.generate(**asked, **always)).choices[0].token_ids
        assert ids[0] != greedy[0]
        assert (await worker.generate(**asked, **always)).choices[0].token_ids == ids
        for never in ({"xtc_probability": 0.0}, {"xtc_threshold": 1.0}):
            assert (await worker.generate(**asked, **{**always, **never})).choices[0].token_ids == free
    cut = await worker.generate(**BASE, temperature=1.0, seed=1, top_k=1, **always)
    assert cut.choices[0].token_ids == greedy
    assert (await worker.generate(**BASE, temperature=0, **always)).choices[0].token_ids == greedy


@pytest.mark.parametrize(
    "cut", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"epsilon_cutoff": 0.99}, {"typical_p": 1.0, "top_k": 1}]
)
async def test_the_narrowest_cut_off_is_greedy(worker: EngineWorker, cut: dict[str, Any]) -> None:
    if not await honours(worker, *cut):
        return
    greedy = await worker.generate(**BASE, temperature=0)
    result = await worker.generate(**BASE, temperature=1.0, seed=3, **cut)
    assert result.choices[0].token_ids == greedy.choices[0].token_ids


@pytest.mark.parametrize(
    "value",
    [
        {"typical_p": 0.5},
        {"top_h": 0.5},
        {"eta_cutoff": 0.01},
        {"encoder_repetition_penalty": 2.0},
        {"encoder_no_repeat_ngram_size": 2},
        {"guidance_scale": 1.5},
        {"exponential_decay_length_penalty": (2, 1.5)},
        {"sequence_bias": [((65, 66), 2.0)]},
        {"presence_penalty": 1.5, "frequency_penalty": -0.5},
        {"dry_multiplier": 0.8, "dry_base": 1.75, "dry_allowed_length": 2, "dry_range": 64},
        {"xtc_probability": 0.5, "xtc_threshold": 0.05, "min_p": 0.02},
        {"top_k": 5, "top_p": 0.9, "min_p": 0.01, "temperature": 0.7},
    ],
)
async def test_each_other_parameter_runs_and_is_repeatable(worker: EngineWorker, value: dict[str, object]) -> None:
    if not await honours(worker, *value):
        return
    request: dict[str, Any] = {**BASE, "temperature": 1.0, "seed": 11, **value}
    first, second = [await worker.generate(**request) for _ in range(2)]
    assert first.usage.completion_tokens == 24
    assert first.choices[0].token_ids == second.choices[0].token_ids


async def test_ids_outside_the_vocabulary_are_refused_by_name(worker: EngineWorker) -> None:
    beyond = worker.metadata.vocab_size
    given: dict[str, Any] = {
        "logit_bias": {beyond: 1.0},
        "stop_token_ids": [beyond],
        "stop_sequences": [[1, beyond]],
        "bad_words_ids": [[beyond]],
        "suppress_tokens": [beyond],
    }
    for name, value in given.items():
        if name in worker.capabilities.parameters:
            with pytest.raises(InvalidRequest) as caught:
                await worker.generate(**BASE, **{name: value})
            assert caught.value.param == name
    with pytest.raises(InvalidRequest) as caught:
        await worker.generate(prompt_token_ids=[beyond])
    assert caught.value.param == "prompt_token_ids"


async def test_banning_everything_is_a_typed_ending(worker: EngineWorker) -> None:
    if not await honours(worker, "suppress_tokens"):
        return
    with pytest.raises(InvalidRequest):
        await worker.generate(**BASE, suppress_tokens=list(range(worker.metadata.vocab_size)))
    assert (await worker.generate(**BASE)).usage.completion_tokens == 24

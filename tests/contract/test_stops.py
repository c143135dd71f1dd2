"""Stops of every kind, taken from what the model really says."""

from __future__ import annotations

from typing import Any

import pytest

from contract.rigs import PROMPT, honours
from drivetrain.core.errors import InvalidRequest
from drivetrain.core.events import Delta
from drivetrain.core.results import Choice, FinishReason
from drivetrain.worker.worker import EngineWorker

GREEDY: dict[str, Any] = {"prompt": PROMPT, "temperature": 0, "ignore_eos": True, "max_tokens": 40}


async def said(worker: EngineWorker, **more: Any) -> Choice:
    return (await worker.generate(**{**GREEDY, **more})).choices[0]


@pytest.fixture(scope="session")
async def free(worker: EngineWorker) -> Choice:
    """What it says without a stop."""
    choice = await said(worker)
    assert len(choice.text) > 12
    return choice


@pytest.mark.parametrize("start", [0, 1, 3, 8])
@pytest.mark.parametrize("length", [1, 2, 5])
async def test_a_stop_anywhere_ends_before_itself(worker: EngineWorker, free: Choice, start: int, length: int) -> None:
    stop = free.text[start : start + length]
    choice = await said(worker, stop=[stop])
    assert choice.text == free.text[: free.text.find(stop)]
    assert choice.finish_reason is FinishReason.STOP
    assert choice.matched_stop == stop
    assert len(choice.token_ids) < len(free.token_ids)


async def test_the_one_completed_first_wins_and_ties_go_to_the_longest(worker: EngineWorker, free: Choice) -> None:
    text = free.text
    choice = await said(worker, stop=[text[6:9], text[4:12], text[5:9]])
    end = min(text.find(s) + len(s) for s in (text[6:9], text[4:12], text[5:9]))
    longest = max((s for s in (text[6:9], text[4:12], text[5:9]) if text.find(s) + len(s) == end), key=len)
    assert choice.matched_stop == longest
    assert choice.text == text[: end - len(longest)]


async def test_nothing_streamed_is_taken_back(worker: EngineWorker, free: Choice) -> None:
    stop = free.text[5:9]
    streamed = ""
    async for event in worker.stream(**GREEDY, stop=[stop]):
        if isinstance(event, Delta):
            streamed += event.text
            assert free.text[: free.text.find(stop)].startswith(streamed)
    assert streamed == free.text[: free.text.find(stop)]


async def test_a_stop_that_never_comes_costs_nothing(worker: EngineWorker, free: Choice) -> None:
    choice = await said(worker, stop=["\x00never\x00", free.text + "and more"])
    assert choice.text == free.text
    assert choice.finish_reason is FinishReason.LENGTH


async def test_include_stop_str_in_output(worker: EngineWorker, free: Choice) -> None:
    stop = free.text[4:7]
    choice = await said(worker, stop=[stop], include_stop_str_in_output=True)
    assert choice.text == free.text[: free.text.find(stop) + len(stop)]


async def test_stop_token_ids(worker: EngineWorker, free: Choice) -> None:
    stop_id = free.token_ids[4]
    choice = await said(worker, stop_token_ids=[stop_id])
    first = free.token_ids.index(stop_id)
    assert choice.token_ids == free.token_ids[: first + 1]
    assert choice.finish_reason is FinishReason.STOP
    assert choice.matched_stop == stop_id
    assert free.text.startswith(choice.text)


async def test_a_stop_on_the_very_first_token(worker: EngineWorker, free: Choice) -> None:
    choice = await said(worker, stop_token_ids=[free.token_ids[0]])
    assert choice.text == ""
    assert choice.finish_reason is FinishReason.STOP
    assert len(choice.token_ids) == 1


async def test_multi_token_stop_sequences(worker: EngineWorker, free: Choice) -> None:
    sequence = free.token_ids[3:6]
    choice = await said(worker, stop_sequences=[sequence])
    assert choice.finish_reason is FinishReason.STOP
    assert choice.matched_stop == tuple(sequence)
    assert len(choice.token_ids) <= 6
    assert free.text.startswith(choice.text)


async def test_min_tokens_puts_every_stop_off(worker: EngineWorker, free: Choice) -> None:
    if not await honours(worker, "min_tokens"):
        return
    choice = await said(worker, stop=[free.text[:2]], stop_token_ids=[free.token_ids[0]], min_tokens=10)
    assert len(choice.token_ids) >= 10


async def test_a_loop_ends_where_the_request_says(worker: EngineWorker, free: Choice) -> None:
    """One token, and, where it comes to one, a longer piece: always at the same place."""
    if not await honours(worker, "max_repetitions"):
        return
    for never in (0, 1):
        assert (await said(worker, max_repetitions=never)).token_ids == free.token_ids
    for most in (2, 3, 20):
        choice = await said(worker, max_repetitions=most)
        end = next((i for i in range(1, 41) if is_loop(free.token_ids[:i], most)), None)
        assert choice.token_ids == free.token_ids[:end]
        assert free.text.startswith(choice.text)
        assert (choice.finish_reason, choice.matched_stop) == (
            (FinishReason.STOP, "repetition") if end else (FinishReason.LENGTH, None)
        )
    if "logit_bias" in worker.capabilities.parameters:
        choice = await said(worker, max_repetitions=5, logit_bias={free.token_ids[0]: 100.0})
        assert choice.token_ids == free.token_ids[:1] * 5


def is_loop(ids: tuple[int, ...], most: int) -> bool:
    sizes = range(1, min(64, len(ids) // most) + 1)
    return any(ids[-size * most :] == ids[-size:] * most for size in sizes)


async def test_eos_ends_and_ignore_eos_does_not(worker: EngineWorker, free: Choice) -> None:
    """A biased EOS is sampled at once; its text and ids say so."""
    eos = worker.metadata.eos_ids[0]
    if "logit_bias" in worker.capabilities.parameters:
        choice = await said(worker, ignore_eos=False, logit_bias={eos: 100.0})
        assert choice.text == ""
        assert choice.token_ids == (eos,)
        assert choice.finish_reason is FinishReason.STOP
        assert choice.matched_stop is None
    assert len(free.token_ids) == 40


async def test_limits_on_stops(worker: EngineWorker) -> None:
    limits = worker.capabilities.limits
    for stop in ([""], "", ["x" * (limits.max_stop_chars + 1)], ["x"] * (limits.max_stops + 1), [1], 7):
        with pytest.raises(InvalidRequest) as caught:
            await said(worker, stop=stop)
        assert (caught.value.param or "").startswith("stop")

"""S2, the Gorilla generation: its contract on the native engine, each of its defects asserted absent. Tiny weights."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import drivetrain
from contract.native_rig import one_thread
from drivetrain import Delta
from drivetrain.core.errors import ContextOverflow
from drivetrain.core.events import ChoiceFinished, Event
from drivetrain.core.results import FinishReason
from drivetrain.text.hf_tokenizer import HfTokenizer
from drivetrain.worker.worker import EngineWorker
from probe import stepper_of

PROMPT = "A chat between a curious user and an assistant.\nUSER: I want to find a cat in a picture.\nASSISTANT:"
ASK: dict[str, Any] = {"prompt": PROMPT, "temperature": 0, "max_tokens": 40, "ignore_eos": True, "stop": []}


@pytest.fixture(scope="module")
async def worker(checkpoint: Callable[[str], Path]) -> AsyncIterator[EngineWorker]:
    with one_thread():
        async with drivetrain.Worker.open(checkpoint("llama"), engine="native", family="gorilla") as made:
            yield made


@dataclass
class Passes:
    """What went through the model: for each pass, the positions of each sequence in it."""

    counts: list[list[int]] = field(default_factory=list)

    @property
    def positions(self) -> int:
        return sum(map(sum, self.counts))


@contextmanager
def watched(worker: EngineWorker) -> Iterator[Passes]:
    runner, seen = stepper_of(worker).runner, Passes()
    forward = runner.forward

    def noted(works: Any) -> Any:
        seen.counts.append([work.count for work in works])
        return forward(works)

    runner.forward = noted  # type: ignore[method-assign]  # to look at what it gets
    try:
        yield seen
    finally:
        runner.forward = forward  # type: ignore[method-assign]


async def events_of(worker: EngineWorker, **request: Any) -> list[Event]:
    return [event async for event in worker.stream(**request)]


# The old contract


async def test_the_form_is_the_familys_and_the_length_defaults_to_1024(worker: EngineWorker) -> None:
    result = await worker.generate(messages=[{"role": "user", "content": "Find a cat."}], temperature=0, max_tokens=4)
    prompt = await worker.detokenize(result.prompt_token_ids or ())
    assert prompt.endswith("USER: Find a cat.\nASSISTANT:")
    assert worker.preparer._defaults.max_tokens() == 1024
    whole = await worker.generate(prompt=PROMPT, ignore_eos=True)
    assert whole.usage.completion_tokens == worker.capabilities.context_length - whole.usage.prompt_tokens < 1024


async def test_the_prompt_is_computed_once_and_then_one_position_a_step(worker: EngineWorker) -> None:
    with watched(worker) as seen:
        result = await worker.generate(**ASK, seed=1)  # a named seed takes nothing from the cache
    assert seen.counts == [[result.usage.prompt_tokens]] + [[1]] * 39


async def test_by_default_it_draws(worker: EngineWorker) -> None:
    ask: dict[str, Any] = {**ASK, "temperature": None}
    texts = {(await worker.generate(**ask, seed=seed)).text for seed in range(4)}
    assert len(texts) == 4
    assert len({(await worker.generate(**ask, seed=7)).text for _ in range(2)}) == 1


async def test_the_old_cumulative_text_every_two_steps(checkpoint: Callable[[str], Path], worker: EngineWorker) -> None:
    """`stream_interval` is a setting of the worker: deltas are gathered, none is lost, none overtakes another."""
    each = [event for event in await events_of(worker, **ASK) if isinstance(event, Delta)]
    with one_thread():
        async with drivetrain.Worker.open(
            checkpoint("llama"), engine="native", family="gorilla", stream_interval=2
        ) as by_two:
            gathered = [event for event in await events_of(by_two, **ASK) if isinstance(event, Delta)]
    assert "".join(delta.text for delta in gathered) == "".join(delta.text for delta in each)
    ids = [token_id for delta in gathered for token_id in delta.token_ids]
    assert ids == [token_id for delta in each for token_id in delta.token_ids]
    assert len(ids) == 40
    assert all(len(delta.token_ids) >= 2 for delta in gathered[:-1])
    assert len(gathered) <= 20
    cumulative = list(itertools.accumulate(delta.text for delta in gathered))
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(cumulative))


async def test_it_ends_at_the_end_token_at_the_stop_and_at_the_length(worker: EngineWorker) -> None:
    free = (await worker.generate(**ASK)).choices[0]
    assert (free.finish_reason, len(free.token_ids)) == (FinishReason.LENGTH, 40)
    end = worker.metadata.eos_ids[0]
    ended = (await worker.generate(**{**ASK, "ignore_eos": False}, logit_bias={end: 100.0})).choices[0]
    assert (ended.finish_reason, ended.token_ids, ended.text) == (FinishReason.STOP, (end,), "")
    stop = free.text[10:13]
    stopped = (await worker.generate(**{**ASK, "stop": [stop]})).choices[0]
    assert (stopped.finish_reason, stopped.matched_stop) == (FinishReason.STOP, stop)
    assert stopped.text == free.text[: free.text.find(stop)]


# Its defects


async def test_temperature_and_top_p_are_honoured(worker: EngineWorker) -> None:
    greedy = (await worker.generate(**ASK)).choices[0].token_ids
    for narrow in ({"temperature": 1.5, "top_p": 1e-9}, {"temperature": 1.5, "top_k": 1}, {"temperature": 1e-4}):
        for seed in range(3):
            result = await worker.generate(**{**ASK, **narrow}, seed=seed)
            assert result.choices[0].token_ids == greedy, narrow
    rank = [await mean_rank(worker, temperature) for temperature in (0.3, 1.0, 2.0)]
    assert rank[0] < rank[1] < rank[2]


async def mean_rank(worker: EngineWorker, temperature: float) -> float:
    """How far down the list the sampled ids were, by the model's own logprobs."""
    ask: dict[str, Any] = {**ASK, "temperature": temperature, "logprobs": 20, "max_tokens": 100}
    entries = (await worker.generate(**ask, seed=5)).choices[0].logprobs or ()
    assert len(entries) > 80
    return sum(sum((top.logprob or 0) > (entry.logprob or 0) for top in entry.top) for entry in entries) / len(entries)


async def test_the_work_is_linear_in_the_answer(worker: EngineWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """There, all output so far was decoded again at every yield."""
    decoded = 0

    def counted(decode: Any) -> Any:
        def count(self: Any, ids: Any, *args: Any, **more: Any) -> Any:
            nonlocal decoded
            decoded += 1 if isinstance(ids, int) else len(ids)
            return decode(self, ids, *args, **more)

        return count

    monkeypatch.setattr(HfTokenizer, "decode", counted(HfTokenizer.decode))
    monkeypatch.setattr(HfTokenizer, "_bytes_in_text", counted(HfTokenizer._bytes_in_text))
    work = {}
    for length in (100, 400):
        decoded = 0
        with watched(worker) as seen:
            result = await worker.generate(**{**ASK, "max_tokens": length, "stop": ["\x00 never"]}, seed=1)
        assert result.usage.completion_tokens == length
        work[length] = (decoded, seen.positions - result.usage.prompt_tokens)
    assert work[100] == (100, 99)
    assert work[400] == (400, 399)


@pytest.mark.parametrize("start", [0, 1, 7, 25, 50])
async def test_a_stop_is_found_wherever_it_is(worker: EngineWorker, start: int) -> None:
    """There, the search began at an offset of the prompt's length, in a text that does not hold the prompt."""
    free = (await worker.generate(**ASK)).choices[0].text
    assert start + 3 < len(free) < len(PROMPT)
    stop = free[start : start + 3]
    result = await worker.generate(**{**ASK, "stop": stop})
    assert result.choices[0].text == free[: free.find(stop)]
    assert result.choices[0].matched_stop == stop


async def test_the_first_of_several_occurrences_ends_it(worker: EngineWorker) -> None:
    """There, the last one was cut at."""
    free = (await worker.generate(**ASK)).choices[0].text
    twice = next(char for char in free if free.count(char) > 1)
    result = await worker.generate(**{**ASK, "stop": [twice]})
    assert result.choices[0].text == free[: free.index(twice)]


async def test_a_stop_is_not_searched_in_the_prompt(worker: EngineWorker) -> None:
    stop = "USER:"
    assert stop in PROMPT
    free = (await worker.generate(**ASK)).choices[0]
    assert stop not in free.text
    assert (await worker.generate(**{**ASK, "stop": [stop]})).choices[0] == free
    echoed = (await worker.generate(**{**ASK, "stop": [stop]}, echo=True)).choices[0]
    assert echoed.text == PROMPT + free.text


@pytest.mark.parametrize("stop", [None, [], ()])
async def test_no_stop_is_no_crash(worker: EngineWorker, stop: Any) -> None:
    assert (await worker.generate(**{**ASK, "stop": stop})).usage.completion_tokens == 40


async def test_half_a_stop_is_never_streamed(worker: EngineWorker) -> None:
    free = (await worker.generate(**ASK)).choices[0].text
    for start in range(4, 40, 3):
        stop = free[start : start + 6]
        wanted = free[: free.find(stop)]
        given = ""
        async for event in worker.stream(**{**ASK, "stop": [stop]}):
            if isinstance(event, Delta):
                given += event.text
                assert wanted.startswith(given), (stop, given)
        assert given == wanted
        almost = stop[:-1] + "\x00"  # it begins as the text does and never comes: nothing may be missing
        assert (await worker.generate(**{**ASK, "stop": [almost]})).text == free


@pytest.mark.parametrize("policy", ["error", "truncate_left", "truncate_middle"])
async def test_the_cut_of_the_prompt_is_never_non_positive(worker: EngineWorker, policy: str) -> None:
    """There, `context - max_new_tokens - 8` went below zero and the slice mangled the prompt."""
    limit = worker.capabilities.context_length
    ids = [10 + i % 700 for i in range(limit + 50)]
    ask: dict[str, Any] = {"prompt_token_ids": ids, "overflow": policy, "ignore_eos": True, "temperature": 0}
    for max_tokens in (limit - 1, limit, limit + 1, 10 * limit):
        if policy == "error" or max_tokens >= limit:
            with pytest.raises(ContextOverflow) as caught:
                await worker.generate(**ask, max_tokens=max_tokens)
            assert caught.value.limit == limit
        else:
            result = await worker.generate(**ask, max_tokens=max_tokens)
            assert result.prompt_token_ids == (ids[-1],)
            assert result.usage.completion_tokens == max_tokens
            assert result.truncated_tokens == len(ids) - 1
    if policy != "error":
        kept = (await worker.generate(**ask, max_tokens=limit - 100)).prompt_token_ids
        assert kept == tuple(ids[-100:] if policy == "truncate_left" else ids[:50] + ids[-50:])


async def test_usage_and_reason_are_told(worker: EngineWorker) -> None:
    events = await events_of(worker, **ASK)
    finished = [event for event in events if isinstance(event, ChoiceFinished)]
    assert [event.reason for event in finished] == [FinishReason.LENGTH]
    result = await worker.generate(**ASK)
    prompt_tokens = await worker.count_tokens(PROMPT)
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (prompt_tokens, 40)
    assert result.usage.total_tokens == prompt_tokens + 40


async def test_many_run_in_one_batch(worker: EngineWorker) -> None:
    """There, the batch size was one."""
    prompts = [f"{i} USER: question number {i}\nASSISTANT:" for i in range(8)]
    alone = [(await worker.generate(**{**ASK, "prompt": prompt})).choices[0].token_ids for prompt in prompts]
    with watched(worker) as seen:
        together = await asyncio.gather(*(worker.generate(**{**ASK, "prompt": prompt}) for prompt in prompts))
    assert [result.choices[0].token_ids for result in together] == alone
    assert max(map(len, seen.counts)) == 8
    assert sum(counts == [1] * 8 for counts in seen.counts) >= 30
    assert len(seen.counts) < 60


async def test_they_stream_side_by_side(worker: EngineWorker) -> None:
    order: list[int] = []

    async def one(i: int) -> None:
        async for event in worker.stream(**{**ASK, "prompt": f"{i} USER: hello\nASSISTANT:"}):
            if isinstance(event, Delta):
                order.append(i)

    await asyncio.gather(*(one(i) for i in range(4)))
    first_end = min(len(order) - 1 - order[::-1].index(i) for i in range(4))
    assert all(order[:first_end].count(i) > 5 for i in range(4))

"""The shape of a stream, and that it says the same as the whole answer."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from contract.rigs import LONG, PROMPT, Rig
from drivetrain.core.errors import InvalidRequest
from drivetrain.core.events import ChoiceFinished, Delta, Event, Finished, Started
from drivetrain.core.results import FinishReason
from drivetrain.worker.worker import EngineWorker

GREEDY: dict[str, Any] = {"prompt": PROMPT, "temperature": 0, "ignore_eos": True}


async def events_of(worker: EngineWorker, **request: Any) -> list[Event]:
    return [event async for event in worker.stream(**request)]


async def test_events_come_in_order_and_end_once(worker: EngineWorker) -> None:
    events = await events_of(worker, **GREEDY, max_tokens=12)
    assert isinstance(events[0], Started)
    assert isinstance(events[-1], Finished)
    kinds = [type(event) for event in events]
    assert kinds.count(Started) == kinds.count(Finished) == kinds.count(ChoiceFinished) == 1
    assert kinds.index(ChoiceFinished) == len(kinds) - 2
    assert all(kind is Delta for kind in kinds[1:-2])


async def test_joined_stream_equals_the_whole(worker: EngineWorker) -> None:
    events = await events_of(worker, **GREEDY, max_tokens=40)
    result = await worker.generate(**GREEDY, max_tokens=40)
    deltas = [event for event in events if isinstance(event, Delta)]
    assert "".join(delta.text for delta in deltas) == result.text
    assert tuple(i for delta in deltas for i in delta.token_ids) == result.choices[0].token_ids
    finished = events[-1]
    assert isinstance(finished, Finished)
    kept = result.usage.cached_tokens  # what is found in a cache depends on what came before, and on a server's slots
    assert replace(finished.usage, cached_tokens=kept) == result.usage
    assert len(deltas) > 1


async def test_text_is_the_decode_of_the_ids(worker: EngineWorker) -> None:
    result = await worker.generate(**GREEDY, max_tokens=40)
    tokenizer = worker.info.tokenizer
    assert tokenizer.decode(result.choices[0].token_ids).startswith(result.text)


@pytest.mark.parametrize("max_tokens", [1, 5, 33])
async def test_max_tokens_is_exact(worker: EngineWorker, max_tokens: int) -> None:
    result = await worker.generate(**GREEDY, max_tokens=max_tokens)
    assert result.usage.completion_tokens == len(result.choices[0].token_ids) == max_tokens
    assert result.choices[0].finish_reason is FinishReason.LENGTH
    assert result.choices[0].matched_stop is None


async def test_usage_adds_up(worker: EngineWorker) -> None:
    result = await worker.generate(**GREEDY, max_tokens=7)
    assert result.usage.prompt_tokens == await worker.count_tokens(PROMPT)
    assert result.usage.total_tokens == result.usage.prompt_tokens + 7


async def test_metrics_are_told(worker: EngineWorker) -> None:
    metrics = (await worker.generate(**GREEDY, max_tokens=20)).metrics
    assert metrics.first_token_s is not None
    assert 0 <= metrics.queue_s <= metrics.first_token_s <= metrics.total_s
    assert metrics.tokens_per_s is not None
    assert metrics.tokens_per_s > 0
    assert metrics.memory[0].device == "cpu"
    assert metrics.memory[0].allocated_bytes > 0
    assert metrics.average_memory


async def test_ids_text_and_messages_are_all_taken(worker: EngineWorker) -> None:
    text = await worker.generate(**GREEDY, max_tokens=8)
    ids: dict[str, Any] = {key: value for key, value in GREEDY.items() if key != "prompt"}
    by_ids = await worker.generate(**ids, prompt_token_ids=text.prompt_token_ids, max_tokens=8)
    assert by_ids.text == text.text
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello 🌍 你好"}]
    chat = await worker.generate(**ids, messages=messages, max_tokens=8)
    assert chat.usage.completion_tokens == 8
    assert chat.usage.prompt_tokens == await worker.count_tokens(messages=messages)


async def test_content_parts_equal_a_plain_string(worker: EngineWorker) -> None:
    ids: dict[str, Any] = {key: value for key, value in GREEDY.items() if key != "prompt"}
    plain = await worker.generate(**ids, messages=[{"role": "user", "content": "Hello there"}], max_tokens=8)
    parts = [{"type": "text", "text": "Hello "}, {"type": "text", "text": "there"}]
    in_parts = await worker.generate(**ids, messages=[{"role": "user", "content": parts}], max_tokens=8)
    assert in_parts.prompt_token_ids == plain.prompt_token_ids
    assert in_parts.text == plain.text


async def test_many_at_once_keep_apart(rig: Rig, worker: EngineWorker) -> None:
    alone = [await worker.generate(**{**GREEDY, "prompt": f"{PROMPT} {i}"}, max_tokens=10) for i in range(4)]
    together = await asyncio.gather(
        *(worker.generate(**{**GREEDY, "prompt": f"{PROMPT} {i}"}, max_tokens=10) for i in range(4))
    )
    assert [r.prompt_token_ids for r in together] == [r.prompt_token_ids for r in alone]
    if rig.exact:
        assert [r.text for r in together] == [r.text for r in alone]
    assert len({r.request_id for r in together}) == 4


async def test_a_stream_interval_gathers_and_loses_nothing(rig: object, worker: EngineWorker) -> None:
    async with rig.open(stream_interval=7) as gathered:  # type: ignore[attr-defined]
        events = await events_of(gathered, **GREEDY, max_tokens=40)
    result = await worker.generate(**GREEDY, max_tokens=40)
    deltas = [event for event in events if isinstance(event, Delta)]
    assert "".join(delta.text for delta in deltas) == result.text
    assert tuple(i for delta in deltas for i in delta.token_ids) == result.choices[0].token_ids
    assert len(deltas) <= 40 // 7 + 1


async def test_a_caller_may_name_the_request(worker: EngineWorker) -> None:
    result = await worker.generate(**GREEDY, max_tokens=1, request_id="mine-1")
    assert result.request_id == "mine-1"


async def test_an_empty_prompt_has_a_typed_ending(worker: EngineWorker) -> None:
    """Where the tokenizer adds a BOS an empty prompt is one token; where it adds nothing it is refused."""
    if await worker.count_tokens("") == 0:
        with pytest.raises(InvalidRequest) as caught:
            await worker.generate(prompt="", max_tokens=3)
        assert caught.value.param == "prompt"
    else:
        assert (await worker.generate(prompt="", max_tokens=3, ignore_eos=True)).usage.completion_tokens == 3


async def test_long_answers_stay_whole(worker: EngineWorker) -> None:
    result = await worker.generate(**GREEDY, max_tokens=LONG)
    assert result.usage.completion_tokens == LONG

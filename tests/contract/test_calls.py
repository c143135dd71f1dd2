"""Calls that a grammar holds, in every kind of request: streamed, with seeds, logprobs and stops, and in company."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import jsonschema_rs
import pytest

from contract.rigs import PROMPT, Rig, honours
from contract.test_tools import ARGUMENTS, HELD, OTHER, check_call
from drivetrain.core.answer import Flaw
from drivetrain.core.events import ChoiceFinished, Delta
from drivetrain.core.results import Choice, FinishReason
from drivetrain.text.answers.parser import MessageBuilder
from drivetrain.worker.worker import EngineWorker

NAMED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "1?"}],
    "tools": [HELD],
    "tool_choice": {"type": "function", "function": {"name": "add"}},
    "temperature": 1.0,
    "max_tokens": 70,
    "seed": 3,
}

Calls = list[tuple[str, str, Flaw | None]]


@pytest.fixture(autouse=True)
async def held(worker: EngineWorker) -> None:
    if not await honours(worker, "constraint", "seed"):
        pytest.skip("nothing holds the calls of this engine")


def calls_of(choice: Choice) -> Calls:
    assert choice.message is not None
    return [(call.name, call.arguments, call.flaw) for call in choice.message.tool_calls]


async def streamed(worker: EngineWorker, **asked: Any) -> dict[int, tuple[Calls, FinishReason]]:
    """By choice: its calls, put together from their pieces, and why it ended."""
    builders: dict[int, MessageBuilder] = {}
    ended: dict[int, tuple[Calls, FinishReason]] = {}
    async for event in worker.stream(**asked):
        if isinstance(event, Delta):
            builder = builders.setdefault(event.index, MessageBuilder())
            for part in event.parts or ():
                builder.add(part)
        elif isinstance(event, ChoiceFinished):
            calls = builders[event.index].message().tool_calls
            ended[event.index] = ([(call.name, call.arguments, call.flaw) for call in calls], event.reason)
    return ended


@pytest.mark.parametrize("choice", ["required", "named"])
async def test_the_same_seed_gives_the_same_call_whole_and_streamed(worker: EngineWorker, choice: str) -> None:
    asked = NAMED if choice == "named" else {**NAMED, "tools": [HELD, OTHER], "tool_choice": "required"}
    asked = {**asked, "parallel_tool_calls": False}
    first, second = [(await worker.generate(**asked)).choices[0] for _ in range(2)]
    check_call(first, {"add", "now"})
    assert calls_of(first) == calls_of(second)
    assert first.token_ids == second.token_ids
    assert await streamed(worker, **asked) == {0: (calls_of(first), FinishReason.TOOL_CALLS)}


async def test_the_calls_of_several_choices_stream_apart(rig: Rig, worker: EngineWorker) -> None:
    if not await honours(worker, "n"):
        return
    asked = {**NAMED, "n": 3, "parallel_tool_calls": False}
    ended = await streamed(worker, **asked)
    assert sorted(ended) == [0, 1, 2]
    for calls, reason in ended.values():
        ((name, arguments, flaw),) = calls
        assert (name, flaw, reason) == ("add", None, FinishReason.TOOL_CALLS)
        assert jsonschema_rs.is_valid(ARGUMENTS, json.loads(arguments))
    if rig.exact:
        whole = (await worker.generate(**asked)).choices
        assert {choice.index: calls_of(choice) for choice in whole} == {i: calls for i, (calls, _) in ended.items()}


async def test_logprobs_are_of_all_that_was_said(worker: EngineWorker) -> None:
    if not await honours(worker, "logprobs"):
        return
    (choice,) = (await worker.generate(**NAMED, logprobs=1)).choices
    check_call(choice, {"add"})
    assert choice.logprobs is not None
    assert b"".join(entry.bytes for entry in choice.logprobs).decode() == choice.text
    assert all(entry.logprob is not None and entry.logprob <= 0 for entry in choice.logprobs)
    offsets = [entry.text_offset for entry in choice.logprobs]
    assert offsets == sorted(offsets)
    assert "add" in choice.text[offsets[0] :]


async def test_a_stop_inside_a_call_cuts_it_off(worker: EngineWorker) -> None:
    (choice,) = (await worker.generate(**NAMED, stop=['"a"'])).choices
    assert (choice.finish_reason, choice.matched_stop) == (FinishReason.STOP, '"a"')
    ((name, arguments, flaw),) = calls_of(choice)
    assert (name, flaw) == ("add", Flaw.CUT_OFF)
    assert arguments.strip() in ("", "{")
    assert await streamed(worker, **NAMED, stop=['"a"']) == {0: (calls_of(choice), FinishReason.STOP)}


async def test_a_stop_behind_a_call_leaves_it_whole(worker: EngineWorker) -> None:
    (choice,) = (await worker.generate(**NAMED, stop=["</tool_call>"])).choices
    assert choice.matched_stop == "</tool_call>"
    check_call(choice, {"add"})
    assert len(calls_of(choice)) == 1
    assert choice.message is not None
    assert choice.message.content is None


async def test_a_batch_of_all_kinds(rig: Rig, worker: EngineWorker) -> None:
    """Calls, a constraint and free text side by side: each is held to its own, and says what it says alone."""
    chat = {"messages": NAMED["messages"], "temperature": 1.0, "seed": 2}
    asked: list[dict[str, Any]] = [
        {**NAMED, "parallel_tool_calls": False},
        {**chat, "max_tokens": 30, "constraint": {"regex": "[ab]{3}-[0-9]{2}"}},
        {**chat, "max_tokens": 12, "ignore_eos": True},
        {"prompt": PROMPT, "max_tokens": 12, "temperature": 0, "ignore_eos": True},
        {**NAMED, "parallel_tool_calls": False, "seed": 9},
    ]
    together = [result.choices[0] for result in await asyncio.gather(*(worker.generate(**each) for each in asked))]
    check_call(together[0], {"add"})
    check_call(together[4], {"add"})
    assert [len(calls_of(together[i])) for i in (0, 4)] == [1, 1]
    assert len(together[1].text) == 6
    assert set(together[1].text) <= set("ab-0123456789")
    assert [choice.message for choice in together[1:4]] == [None, None, None]
    assert [len(choice.token_ids) for choice in together[2:4]] == [12, 12]
    if rig.exact:
        alone = [(await worker.generate(**each)).choices[0].token_ids for each in asked]
        assert alone == [choice.token_ids for choice in together]

"""Reasoning in every kind of request: with seeds, stops, logprobs and a budget."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from contract.rigs import Rig, honours
from contract.test_reasoning import TURNS, joined
from drivetrain.core.events import Delta
from drivetrain.core.results import Choice, FinishReason
from drivetrain.families.registry import FamilyChoice, TemplateFamily
from drivetrain.text.answers.detect import GENERIC, FormChoice
from drivetrain.text.templates import ChatTemplate
from drivetrain.worker import model
from drivetrain.worker.worker import EngineWorker

THOUGHT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Count."}], "temperature": 1.0, "seed": 5, "max_tokens": 12,
    "ignore_eos": True,
}  # fmt: skip
BUDGET: dict[str, Any] = {
    **THOUGHT, "ignore_eos": False, "max_tokens": 60, "max_reasoning_tokens": 4,
    "constraint": {"choice": ["yes and no"]},
}  # fmt: skip


@pytest.fixture(scope="module")
async def worker(rig: Rig) -> AsyncIterator[EngineWorker]:
    """Its chat template ends in `<think>`."""
    template = ChatTemplate(f"{TURNS}\n<think>\n", special_tokens={}, special_strings=frozenset())
    family = FamilyChoice(TemplateFamily(template=template), "for this test", ())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "choose", lambda **_: family)
        patch.setattr(model, "form_of", lambda _: FormChoice(GENERIC, "for this test", reasons=True))
        async with rig.open() as made:
            yield made


async def said(worker: EngineWorker, **asked: Any) -> Choice:
    return (await worker.generate(**asked)).choices[0]


def reasoning_of(choice: Choice) -> str:
    assert choice.message is not None
    return choice.message.reasoning or ""


async def test_the_same_seed_gives_the_same_reasoning(rig: Rig, worker: EngineWorker) -> None:
    if not await honours(worker, "seed"):
        return
    first, second, *others = [await said(worker, **{**THOUGHT, "seed": seed}) for seed in (1, 1, 2, 3)]
    assert first.message == second.message
    assert reasoning_of(first)
    assert not rig.seeded or {reasoning_of(choice) for choice in others} != {reasoning_of(first)}


async def test_a_stop_ends_the_reasoning_before_itself(worker: EngineWorker) -> None:
    free = reasoning_of(await said(worker, **THOUGHT))
    assert len(free) > 8
    stop = free[4:7]
    result = await worker.generate(**THOUGHT, stop=[stop])
    (choice,) = result.choices
    assert (choice.finish_reason, choice.matched_stop) == (FinishReason.STOP, stop)
    assert reasoning_of(choice).strip() == free[: free.find(stop)].strip()
    assert choice.message is not None
    assert choice.message.content is None
    assert 0 < result.usage.reasoning_tokens <= result.usage.completion_tokens < 12


async def test_logprobs_are_of_the_reasoning_too(worker: EngineWorker) -> None:
    if not await honours(worker, "logprobs"):
        return
    choice = await said(worker, **THOUGHT, logprobs=1)
    assert choice.logprobs is not None
    assert len(choice.logprobs) == 12
    assert b"".join(entry.bytes for entry in choice.logprobs).decode("utf-8", "replace").startswith(choice.text)
    assert reasoning_of(choice).strip() == choice.text.strip()


@pytest.fixture
async def budget(worker: EngineWorker) -> bool:
    return await honours(worker, "constraint")


async def test_a_budget_gives_the_same_whole_and_streamed(worker: EngineWorker, budget: bool) -> None:
    if not budget:
        return
    result = await worker.generate(**BUDGET)
    (choice,) = result.choices
    assert choice.message is not None
    assert (choice.message.content, choice.finish_reason) == ("yes and no", FinishReason.STOP)
    assert 4 <= result.usage.reasoning_tokens <= 4 + len("</think>\n\n")
    deltas = [event async for event in worker.stream(**BUDGET) if isinstance(event, Delta)]
    assert joined(deltas) == choice.message
    if await honours(worker, "logprobs"):
        told = await said(worker, **BUDGET, logprobs=0)
        assert told.message == choice.message
        assert told.logprobs is not None
        assert b"".join(entry.bytes for entry in told.logprobs).decode("utf-8", "replace") == choice.text


async def test_a_stop_behind_the_reasoning_leaves_it_whole(worker: EngineWorker, budget: bool) -> None:
    if not budget:
        return
    free = await said(worker, **BUDGET)
    choice = await said(worker, **BUDGET, stop=[" and"])
    assert choice.message is not None
    assert (choice.message.content, reasoning_of(choice)) == ("yes", reasoning_of(free))
    assert (choice.finish_reason, choice.matched_stop) == (FinishReason.STOP, " and")
    at_the_marker = await said(worker, **BUDGET, stop=["</think>"])
    assert at_the_marker.matched_stop == "</think>"
    assert at_the_marker.message is not None
    assert (at_the_marker.message.content, reasoning_of(at_the_marker)) == (None, reasoning_of(free))

"""What the native engine owes a constraint beyond the contract: forced ids need no step each, and nothing changes."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from contract.native_rig import NativeRig, at_once
from drivetrain.core.events import Delta
from drivetrain.core.results import FinishReason
from drivetrain.engines.native.engine import NativeEngine
from drivetrain.engines.native.schedule import sequence as sequences
from drivetrain.engines.native.schedule.sequence import MOST_FORCED
from drivetrain.text.grammar.library import GrammarMatcher
from drivetrain.worker.worker import EngineWorker
from probe import engine_of, stepper_of

SCHEMA = {
    "type": "object",
    "properties": {
        "a_rather_long_name_of_a_property": {"type": "string", "maxLength": 5},
        "and_another_one_that_is_long_too": {"type": "boolean"},
    },
    "required": ["a_rather_long_name_of_a_property", "and_another_one_that_is_long_too"],
    "additionalProperties": False,
}
ASKED: dict[str, Any] = {"prompt": "Once", "seed": 5, "max_tokens": 200, "constraint": {"json_schema": SCHEMA}}


@pytest.fixture(scope="module")
def rig(checkpoint: Callable[[str], Path]) -> NativeRig:
    return NativeRig(checkpoint)


@pytest.fixture
async def worker(rig: NativeRig) -> AsyncIterator[EngineWorker]:
    async with rig.open() as made:
        yield made


async def test_forced_ids_need_no_step_each(rig: NativeRig, worker: EngineWorker) -> None:
    before = rig.steps(worker)
    result = await worker.generate(**ASKED)
    choice = result.choices[0]
    assert choice.finish_reason is FinishReason.STOP
    assert json.loads(choice.text).keys() == SCHEMA["properties"].keys()  # type: ignore[attr-defined] # a dict
    assert rig.steps(worker) - before < len(choice.token_ids) / 2
    assert result.usage.completion_tokens == len(choice.token_ids)


async def test_they_are_those_that_come_one_by_one(worker: EngineWorker) -> None:
    """With logprobs, every id has a step of its own."""
    at_once = (await worker.generate(**ASKED)).choices[0]
    one_by_one = (await worker.generate(**ASKED, logprobs=1)).choices[0]
    assert one_by_one.token_ids == at_once.token_ids
    assert one_by_one.logprobs is not None
    assert b"".join(entry.bytes for entry in one_by_one.logprobs).decode() == at_once.text


@pytest.mark.parametrize("limit", range(1, 40, 3))
async def test_a_limit_among_them(worker: EngineWorker, limit: int) -> None:
    whole = (await worker.generate(**ASKED)).choices[0]
    cut = (await worker.generate(**{**ASKED, "max_tokens": limit})).choices[0]
    assert cut.token_ids == whole.token_ids[:limit]
    assert cut.finish_reason is FinishReason.LENGTH


async def test_a_stop_among_them(worker: EngineWorker) -> None:
    choice = (await worker.generate(**ASKED, stop=["long_name"])).choices[0]
    assert choice.text.endswith("a_rather_")
    assert choice.matched_stop == "long_name"


async def test_more_of_them_than_one_step_takes(worker: EngineWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "x" * (3 * MOST_FORCED)
    deltas = [
        event
        async for event in worker.stream(prompt="Once", constraint={"choice": [text]}, max_tokens=200)
        if isinstance(event, Delta)
    ]
    assert "".join(delta.text for delta in deltas) == text
    assert max(len(delta.token_ids) for delta in deltas) <= MOST_FORCED + 1


@pytest.mark.slow
async def test_a_cache_that_is_too_small_for_all_of_them(rig: NativeRig) -> None:
    """Sequences give way in the middle of their text, compute it again and go on in the same grammar."""
    async with rig.open(options={"context_length": 256}) as worker:
        engine = engine_of(worker)
        assert isinstance(engine, NativeEngine)
        scheduler = stepper_of(worker).scheduler
        scheduler.pool.groups[0].num_blocks = scheduler.pool.blocks_for(256)
        scheduler._headroom = 1
        asked = {**ASKED, "max_tokens": 250, "constraint": {"regex": "([a-z]{40}-----){8}"}}
        alone = [await worker.generate(**{**asked, "seed": seed}) for seed in range(4)]
        together = await at_once(worker, *(worker.generate(**{**asked, "seed": seed, "n": 2}) for seed in range(4)))
        for one, two in zip(alone, together, strict=True):
            assert two.choices[0].text == one.text
            for choice in two.choices:
                assert re.fullmatch("([a-z]{40}-----){8}", choice.text)
        assert scheduler.num_preemptions > 0


async def test_banned_ids_are_not_forced(worker: EngineWorker) -> None:
    """The sampler says what is wrong, in the caller's words."""
    forced = (await worker.generate(**ASKED)).choices[0].token_ids[1]
    with pytest.raises(Exception, match="leave no token") as caught:
        await worker.generate(**ASKED, suppress_tokens=[forced])
    assert getattr(caught.value, "param", None) == "suppress_tokens"


def test_an_answer_that_is_computed_again_is_a_prompt() -> None:
    """It shares the room for prompts, however little of it is left."""
    from drivetrain.core.engine import EngineRequest

    request = EngineRequest(request_id="x", prompt_ids=(1, 2, 3), context_length=1000, max_tokens=None, seeds=(0,))
    one = sequences.Job.of(request, 0).sequences[0]

    def decodes(computed: int, behind: int, forced: int) -> bool:
        one.ids, one.computed, one.forced = [1, 2, 3] + [4] * behind, computed, forced
        return one.decodes

    assert decodes(3, 6, 5)
    assert decodes(8, 6, 5)
    assert not decodes(0, 6, 5)
    assert not decodes(3, 6, 0)
    assert not decodes(3, 7, 5)


async def test_masks_are_computed_beside_the_forward_pass(
    worker: EngineWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each step both wait for the other one, which would never come if one were done after the other."""
    engine = engine_of(worker)
    assert isinstance(engine, NativeEngine)
    runner, meet, num_met = stepper_of(worker).runner, threading.Barrier(2), 0
    forward, write_mask = runner.forward, GrammarMatcher.write_mask

    def forward_and_meet(works: Any) -> Any:
        nonlocal num_met
        if any(work.samples for work in works):
            meet.wait(30)
            num_met += 1
        return forward(works)

    def meet_and_write(self: GrammarMatcher, address: int, size: int) -> None:
        meet.wait(30)
        write_mask(self, address, size)

    monkeypatch.setattr(runner, "forward", forward_and_meet)
    monkeypatch.setattr(GrammarMatcher, "write_mask", meet_and_write)
    result = await worker.generate(prompt="Once", constraint={"regex": "[a-z]{8}"}, max_tokens=20)
    assert re.fullmatch("[a-z]{8}", result.text)
    assert num_met > 1

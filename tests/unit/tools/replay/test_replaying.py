"""What is rounding and what is not, on a real engine: receipts whose answers were bent by a known amount."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contract.native_rig import NativeRig
from drivetrain.core.receipt import Receipt, Settled
from drivetrain.tools.replay import replaying
from drivetrain.tools.replay.reading import Entry
from drivetrain.tools.replay.replaying import Terms, replay_all
from drivetrain.tools.replay.verdict import Replayed, Verdict, first_difference, same_end, worst
from drivetrain.worker.worker import EngineWorker


@pytest.fixture(scope="module")
async def worker(checkpoint: Callable[[str], Path]) -> AsyncIterator[EngineWorker]:
    async with NativeRig(checkpoint).open() as made:
        yield made


async def replayed(worker: EngineWorker, receipt: Receipt, tolerance: float = 0.001) -> Replayed:
    (found,) = await replay_all(worker, [Entry("x", receipt)], Terms(3, tolerance), "it", lambda what, share: None)
    return found


async def bent(worker: EngineWorker, *seeds: int, temperature: float) -> tuple[Receipt, int, float]:
    """An answer that took the second best token somewhere, by a bias that its receipt does not tell of: where, and how
    large it had to be."""
    for seed in seeds:
        asked: dict[str, Any] = {"prompt": "Once", "max_tokens": 6, "temperature": temperature, "seed": seed}
        straight = (await worker.generate(**asked, logprobs=2)).choices[0]
        for place, entry in enumerate(straight.logprobs or ()):
            other = next(one.token_id for one in entry.top if one.token_id != entry.token_id)
            for size in (0.01, 0.1, 1.0, 10.0):
                receipt = (await worker.generate(**asked, receipt="full", logit_bias={other: size})).receipt
                assert receipt is not None
                ids = receipt.choices[0].token_ids
                if first_difference(straight.token_ids, ids) == place and ids[place] == other:
                    kept = {**receipt.parameters, "logit_bias": Settled({}, "neutral")}
                    return replace(receipt, parameters=kept), place, size
    raise AssertionError("nothing bends it")


async def test_a_small_shift_of_logits_is_rounding_and_a_large_one_is_not(worker: EngineWorker) -> None:
    receipt, at, size = await bent(worker, 1, temperature=0)
    within = await replayed(worker, receipt, tolerance=2 * size)
    assert within.verdict is Verdict.ROUNDING
    assert within.choices[0].at == at
    assert within.choices[0].why.endswith(f"are moved towards each other by {2 * size:g}")
    beyond = await replayed(worker, receipt, tolerance=1e-7)
    assert beyond.verdict is Verdict.DIFFERENT
    assert "beyond" not in beyond.choices[0].why
    assert "apart" in beyond.choices[0].why
    for found in (within, beyond):
        parting = found.choices[0].parting
        assert parting is not None
        assert parting.first is not None
        assert parting.second is not None
        assert parting.first.token_id == receipt.choices[0].token_ids[at]
        assert len(parting.first.top) == len(parting.second.top) == 3
        assert len(found.choices[0].logprobs) == len(receipt.choices[0].token_ids)


async def test_a_sampled_answer_is_within_rounding_where_the_draw_is_on_the_edge(worker: EngineWorker) -> None:
    receipt, at, size = await bent(worker, *range(20), temperature=1.0)
    assert (await replayed(worker, receipt, tolerance=1e-9)).verdict is Verdict.DIFFERENT
    found = await replayed(worker, receipt, tolerance=2 * size)
    assert found.choices[0].at == at
    assert found.verdict is Verdict.ROUNDING


async def test_a_shift_far_below_the_tolerance_is_found_where_the_tolerance_itself_passes_by(
    worker: EngineWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unlikely token is drawn in a narrow space, which a large shift leaves behind."""
    for seed in range(200):
        asked: dict[str, Any] = {"prompt": "Once", "max_tokens": 24, "seed": seed, "receipt": "full"}
        straight, shifted = [(await worker.generate(**asked, temperature=t)).receipt for t in (1, 1 + 0.05 / 2**8)]
        assert straight is not None
        assert shifted is not None
        receipt = replace(shifted, parameters=straight.parameters)
        with monkeypatch.context() as coarse:
            coarse.setattr(replaying, "HALVINGS", 1)
            if (await replayed(worker, receipt, tolerance=0.05)).verdict is not Verdict.DIFFERENT:
                continue
        assert (await replayed(worker, receipt, tolerance=0.05)).verdict is Verdict.ROUNDING
        return
    raise AssertionError("no seed shows it")


async def test_another_seed_is_a_difference(worker: EngineWorker) -> None:
    made = (await worker.generate(prompt="Once", max_tokens=8, temperature=1.0, seed=1, receipt="full")).receipt
    assert made is not None
    assert (await replayed(worker, made)).verdict is Verdict.IDENTICAL
    other = replace(made, parameters={**made.parameters, "seed": Settled(2, "request")})
    assert (await replayed(worker, other)).verdict is Verdict.DIFFERENT


async def test_what_cannot_be_replayed_says_why(worker: EngineWorker) -> None:
    hashes = (await worker.generate(prompt="Once", max_tokens=2, receipt=True)).receipt
    full = (await worker.generate(prompt="Once", max_tokens=2, receipt="full")).receipt
    assert hashes is not None
    assert full is not None
    unknown = {**full.parameters, "temperature": Settled("hot", "request")}
    long = replace(full, prompt=replace(full.prompt, ids=(1,) * 100_000))
    for receipt, words in (
        (hashes, "ask for a full receipt"),
        (replace(full, parameters=unknown), "temperature must be a number"),
        (replace(full, request={"constraint": {"form": "no such", "source": 5}}), "its request is not one"),
        (long, "context"),
    ):
        found = await replayed(worker, receipt)
        assert found.verdict is Verdict.REFUSED
        assert words in found.why
    missing = await replay_all(worker, [Entry("x", None, fault="broken")], Terms(1, 0), "it", lambda what, share: None)
    assert [(one.verdict, one.why) for one in missing] == [(Verdict.INVALID, "broken")]


async def test_messages_that_are_rendered_in_another_way_are_another_prompt(worker: EngineWorker) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    asked: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [tool],
        "tool_choice": "required",
    }
    made = (await worker.generate(**asked, max_tokens=40, receipt="full")).receipt
    assert made is not None
    assert made.request is not None
    assert (await replayed(worker, made)).verdict is Verdict.IDENTICAL
    said = {**made.request, "messages": [{"role": "user", "content": [{"text": "Bye"}]}]}
    assert (await replayed(worker, replace(made, request=said))).verdict is Verdict.OTHER_PROMPT


def test_where_two_answers_differ() -> None:
    assert first_difference((), ()) is first_difference((1, 2), (1, 2)) is None
    assert [first_difference((1, 2), other) for other in ((), (1,), (1, 3), (1, 2, 3))] == [0, 1, 1, 2]
    assert same_end("tool_calls", "stop")
    assert not same_end("length", "stop")
    assert not same_end("length", None)
    assert worst([]) is Verdict.IDENTICAL
    assert worst([Verdict.ROUNDING, Verdict.DIFFERENT, Verdict.IDENTICAL]) is Verdict.DIFFERENT

"""A receipt says what the result says and what was in force, and what it says makes the same answer again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contract.rigs import PROMPT, Rig, honours
from drivetrain.core.errors import InvalidRequest
from drivetrain.core.events import Finished
from drivetrain.core.receipt import Receipt, Settled
from drivetrain.core.results import Result
from drivetrain.core.sealing import Signature, document, ids_sha256, opened
from drivetrain.tools.replay.reading import Entry
from drivetrain.tools.replay.replaying import Terms, replay_all
from drivetrain.tools.replay.verdict import GOOD, Verdict
from drivetrain.worker.worker import EngineWorker

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 6}


async def receipt_of(worker: EngineWorker, **request: Any) -> tuple[Result, Receipt]:
    result = await worker.generate(**{"receipt": True, **request})
    assert result.receipt is not None
    assert opened(document(result.receipt)) == (result.receipt, Signature.NONE)
    return result, result.receipt


@pytest.mark.parametrize("request_", [CHAT, {"prompt": PROMPT, "max_tokens": 6}], ids=["chat", "prompt"])
async def test_it_agrees_with_the_result(worker: EngineWorker, request_: dict[str, Any]) -> None:
    result, receipt = await receipt_of(worker, **request_, request_id="mine")
    known = worker.metadata
    assert (receipt.request_id, receipt.model) == ("mine", known.name)
    assert (receipt.engine, receipt.device, receipt.dtype) == (known.engine, known.device, known.dtype)
    assert set(receipt.versions) == {"drivetrain", "python", *known.versions}
    assert result.prompt_token_ids is not None
    assert receipt.prompt.sha256 == ids_sha256(result.prompt_token_ids)
    assert (receipt.prompt.tokens, receipt.prompt.ids) == (len(result.prompt_token_ids), None)
    said = [(choice.index, choice.token_ids, choice.finish_reason) for choice in result.choices]
    assert [(choice.index, choice.token_ids, choice.finish_reason) for choice in receipt.choices] == said
    assert receipt.request is None
    assert not receipt.is_replayable


async def test_a_stream_ends_with_it(worker: EngineWorker) -> None:
    events = [event async for event in worker.stream(**CHAT, receipt=True)]
    last = events[-1]
    assert isinstance(last, Finished)
    assert last.receipt is not None
    assert last.receipt.choices[0].token_ids
    events = [event async for event in worker.stream(**CHAT)]
    assert isinstance(last := events[-1], Finished)
    assert last.receipt is None


async def test_each_value_says_where_it_comes_from(rig: Rig) -> None:
    async with rig.open(temperature=0.5, overflow="truncate_left") as worker:
        _, receipt = await receipt_of(worker, **CHAT, stop=["never", "ever"], seed=None)
        found = receipt.parameters
        assert found["temperature"] == Settled(0.5, "settings")
        assert found["max_tokens"] == Settled(6, "request")
        assert found["stop"] == Settled(["never", "ever"], "request")
        assert found["overflow"] == Settled("truncate_left", "settings")
        honoured = worker.metadata.sampling
        assert {name: (settled.origin, settled.value) for name, settled in found.items() if name in honoured} == {
            name: (origin, plain_value(value)) for name, (origin, value) in honoured.items()
        }
        assert found["reproducibility"] == Settled(worker.capabilities.reproducibility.value, "engine")
        _, asked = await receipt_of(worker, **CHAT, temperature=0.25)
        assert asked.parameters["temperature"] == Settled(0.25, "request")


def plain_value(value: Any) -> Any:
    return dict(value) if hasattr(value, "items") else list(value) if isinstance(value, tuple) else value


async def test_its_seed_makes_the_same_answer_again(rig: Rig, worker: EngineWorker) -> None:
    if not await honours(worker, "seed"):
        return
    sampled = {"prompt": PROMPT, "max_tokens": 12, "temperature": 1.0}
    first, receipt = await receipt_of(worker, **sampled)
    assert receipt.parameters["seed"].origin == "chosen"
    assert 0 <= (receipt.seed or 0) < 2**53
    again, second = await receipt_of(worker, **sampled, seed=receipt.seed)
    assert second.parameters["seed"] == Settled(receipt.seed, "request")
    assert [choice.token_ids for choice in again.choices] == [choice.token_ids for choice in first.choices]


async def test_it_says_what_was_demanded(worker: EngineWorker) -> None:
    if not await honours(worker, "reproducibility"):
        return
    _, receipt = await receipt_of(worker, **CHAT, reproducibility="exact")
    assert receipt.parameters["reproducibility"] == Settled("exact", "request")


async def test_a_full_one_holds_the_prompt(worker: EngineWorker) -> None:
    result, receipt = await receipt_of(worker, **CHAT, receipt="full")
    assert receipt.is_replayable
    assert receipt.prompt.ids == result.prompt_token_ids


async def test_a_constraint_is_told_by_its_hash_and_whole_in_a_full_one(worker: EngineWorker) -> None:
    if not await honours(worker, "constraint"):
        return
    request: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 8}
    receipts = [
        (await receipt_of(worker, **request, constraint={"choice": choices}, receipt=wish))[1]
        for choices, wish in ((["yes", "no"], True), (["yes", "no"], "full"), (["yes", "on"], "full"))
    ]
    assert receipts[0].constraint == receipts[1].constraint != receipts[2].constraint
    assert receipts[0].request is None
    assert receipts[1].request == {"constraint": {"form": "choice", "source": '["yes", "no"]'}}
    _, none = await receipt_of(worker, **request)
    assert none.constraint is None


async def test_several_choices_and_an_echo(worker: EngineWorker) -> None:
    if await honours(worker, "n"):
        result, receipt = await receipt_of(worker, prompt=PROMPT, max_tokens=3, n=2)
        assert [choice.token_ids for choice in receipt.choices] == [choice.token_ids for choice in result.choices]
    _, receipt = await receipt_of(worker, prompt=PROMPT, max_tokens=0, echo=True)
    assert [(choice.token_ids, choice.finish_reason) for choice in receipt.choices] == [((), "length")]


async def test_a_cut_prompt_is_told(worker: EngineWorker) -> None:
    request = {"prompt": PROMPT, "max_tokens": 2, "context_length": 12, "overflow": "truncate_left"}
    result, receipt = await receipt_of(worker, **request)
    assert receipt.prompt.truncated == result.truncated_tokens > 0
    assert receipt.parameters["context_length"] == Settled(12, "request")


async def test_nothing_is_made_of_an_answer_that_failed(worker: EngineWorker) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await worker.generate(prompt=PROMPT, max_tokens=2, receipt="ids")  # type: ignore[arg-type]
    assert caught.value.param == "receipt"


async def test_a_key_signs_it(rig: Rig, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("a key that nobody knows\n")
    async with rig.open(receipt_key_file=str(file)) as worker:
        made = (await worker.generate(**CHAT, receipt=True)).receipt
        assert made is not None
        assert opened(document(made), b"a key that nobody knows") == (made, Signature.VALID)


TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {"enum": ["up", "down"]}}}},
}
REPLAYED: dict[str, dict[str, Any]] = {
    "greedy": {"prompt": PROMPT, "temperature": 0, "max_tokens": 8},
    "sampled": {"prompt": PROMPT, "temperature": 1.0, "max_tokens": 8},
    "chat": {**CHAT, "temperature": 1.0, "stop": ["e", "a"]},
    "choices": {"prompt": PROMPT, "temperature": 1.0, "n": 2, "max_tokens": 4},
    "constraint": {"prompt": PROMPT, "temperature": 1.0, "constraint": {"regex": "[a-z]{3,9}"}, "max_tokens": 12},
    "tools": {**CHAT, "tools": [TOOL], "tool_choice": "required", "max_tokens": 60},
}


@pytest.mark.parametrize("name", REPLAYED)
async def test_a_replay_on_the_same_engine_says_the_same(rig: Rig, worker: EngineWorker, name: str) -> None:
    request = REPLAYED[name]
    if not await honours(worker, "seed") or not await honours(
        worker, *(k for k in ("n", "constraint") if k in request)
    ):
        return
    if name == "tools" and not await honours(worker, "constraint"):
        return
    _, receipt = await receipt_of(worker, **request, receipt="full")
    (replayed,) = await replay_all(worker, [Entry("here", receipt)], Terms(2, 0.001), "it", lambda what, share: None)
    if rig.exact:
        assert replayed.verdict is Verdict.IDENTICAL, replayed
        assert all(logprob is None or logprob <= 0 for logprob in replayed.choices[0].logprobs)
    else:
        assert replayed.verdict in GOOD, replayed


async def test_an_answer_that_is_not_the_recorded_one_is_found(worker: EngineWorker) -> None:
    if not await honours(worker, "seed"):
        return
    _, receipt = await receipt_of(worker, **REPLAYED["greedy"], receipt="full")
    (choice,) = receipt.choices
    other = (*choice.token_ids[:3], (choice.token_ids[3] + 1) % worker.metadata.vocab_size, *choice.token_ids[4:])
    forged = replace(receipt, choices=(replace(choice, token_ids=other),))
    (replayed,) = await replay_all(worker, [Entry("here", forged)], Terms(2, 1e-9), "it", lambda what, share: None)
    assert replayed.verdict is Verdict.DIFFERENT
    (found,) = replayed.choices
    assert found.at == 3
    assert found.parting is not None
    assert found.parting.first is not None
    assert found.parting.second is not None
    assert (found.parting.first.token_id, found.parting.second.token_id) == (other[3], choice.token_ids[3])
    assert found.why
    if {"prompt_logprobs", "logprobs"} <= worker.capabilities.parameters:  # then the recorded ids are scored
        assert len(found.logprobs) == len(other)
        assert found.parting.first.top

"""A prompt with a suffix: what is between them is filled in, by the special tokens of the model's vocabulary."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from contract.filling import END, MIDDLE, PREFIX, SUFFIX
from contract.rigs import PROMPT, Rig, honours
from contract.test_receipts import receipt_of
from drivetrain.core.errors import ContextOverflow, InvalidRequest, Unsupported
from drivetrain.core.events import Delta
from drivetrain.core.receipt import Settled
from drivetrain.core.results import FinishReason, Result
from drivetrain.tools.replay.reading import Entry
from drivetrain.tools.replay.replaying import Terms, replay_all
from drivetrain.tools.replay.verdict import GOOD
from drivetrain.worker.worker import EngineWorker

GAP: dict[str, Any] = {"prompt": "def add(a, b):\n    return ", "suffix": "\n\nprint(add(1, 2))\n"}
NAMES = (PREFIX, SUFFIX, MIDDLE, END)


@pytest.fixture(scope="session")
async def opened(rig: Rig) -> AsyncIterator[EngineWorker]:
    """On a model that can, if the rig has one."""
    async with rig.open(infill=True) as made:
        yield made


@pytest.fixture
async def filler(opened: EngineWorker) -> EngineWorker:
    if "suffix" not in opened.capabilities.parameters:
        pytest.skip("this rig has no model with the tokens")
    return opened


async def refuses(worker: EngineWorker) -> None:
    with pytest.raises(Unsupported, match="its vocabulary") as caught:
        await worker.generate(**GAP, max_tokens=2)
    assert caught.value.param == "suffix"


async def test_a_model_without_the_tokens_refuses_it_by_name(worker: EngineWorker) -> None:
    assert "suffix" not in worker.capabilities.parameters
    await refuses(worker)


async def test_an_empty_one_asks_for_nothing(worker: EngineWorker, filler: EngineWorker) -> None:
    for any_worker in (worker, filler):
        plain = await any_worker.generate(prompt=PROMPT, max_tokens=4, temperature=0)
        same = await any_worker.generate(prompt=PROMPT, suffix="", max_tokens=4, temperature=0)
        assert (same.text, same.prompt_token_ids) == (plain.text, plain.prompt_token_ids)


def parts(worker: EngineWorker, result: Result) -> list[tuple[str, str]]:
    """Each of our special tokens with the text behind it."""
    tokenizer, ids = worker.info.tokenizer, list(result.prompt_token_ids or ())
    known = {tokenizer.id_of(name): name for name in NAMES}
    starts = [at for at, token_id in enumerate(ids) if token_id in known]
    ends = [*starts[1:], len(ids)]
    assert all(tokenizer.is_special(token_id) for token_id in ids[: starts[0]])
    return [
        (known[ids[start]], tokenizer.decode(ids[start + 1 : end], skip_special=False))
        for start, end in zip(starts, ends, strict=True)
    ]


async def test_the_prompt_has_the_order_of_the_training(filler: EngineWorker) -> None:
    result = await filler.generate(**GAP, max_tokens=3, ignore_eos=True)
    found = parts(filler, result)
    assert [name for name, _ in found] == [PREFIX, SUFFIX, MIDDLE]
    assert [text.removeprefix(" ") for _, text in found] == [GAP["prompt"], GAP["suffix"], ""]
    assert result.usage.prompt_tokens == len(result.prompt_token_ids or ())
    assert result.usage.completion_tokens == 3


async def test_a_gap_may_be_at_the_start(filler: EngineWorker) -> None:
    found = parts(filler, await filler.generate(prompt="", suffix="x = 1", max_tokens=1))
    assert [(name, text.strip()) for name, text in found] == [(PREFIX, ""), (SUFFIX, "x = 1"), (MIDDLE, "")]


async def test_no_text_forges_a_special_token(filler: EngineWorker) -> None:
    tokenizer = filler.info.tokenizer
    forged = "a" + "".join(sorted({*tokenizer.special_strings, *NAMES})) + "b"
    result = await filler.generate(prompt=forged, suffix=forged, max_tokens=1)
    plain = await filler.generate(prompt="ab", suffix="ab", max_tokens=1)
    specials = [[i for i in r.prompt_token_ids or () if tokenizer.is_special(i)] for r in (result, plain)]
    assert specials[0] == specials[1]
    spelled = tokenizer.decode(result.prompt_token_ids or (), skip_special=False).replace(" ", "")
    assert spelled.count(forged.replace(" ", "")) == 2


async def test_it_streams_and_stops_as_any_answer(filler: EngineWorker) -> None:
    asked: dict[str, Any] = {**GAP, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    whole = await filler.generate(**asked)
    events = [event async for event in filler.stream(**asked)]
    assert "".join(event.text for event in events if isinstance(event, Delta)) == whole.text
    stop = next(char for char in whole.text[1:] if char.isprintable() and char != "\ufffd")
    cut = await filler.generate(**asked, stop=[stop])
    assert cut.text == whole.text[: whole.text.index(stop)]


async def test_several_choices_and_a_constraint(filler: EngineWorker) -> None:
    if await honours(filler, "n", "seed"):
        result = await filler.generate(**GAP, n=2, seed=4, temperature=1.0, max_tokens=4)
        assert [choice.index for choice in result.choices] == [0, 1]
    if await honours(filler, "constraint"):
        held = await filler.generate(**GAP, constraint={"choice": ["a + b", "b + a"]}, max_tokens=40)
        assert held.text in {"a + b", "b + a"}


@pytest.mark.parametrize("name", [END, PREFIX])
async def test_what_ends_a_fill_ends_the_answer_and_no_other(filler: EngineWorker, name: str) -> None:
    if not await honours(filler, "logit_bias"):
        return
    end = filler.info.tokenizer.id_of(name)
    assert end is not None
    forced: dict[str, Any] = {"logit_bias": {end: 100.0}, "temperature": 0, "max_tokens": 3}
    filled = await filler.generate(**GAP, **forced)
    (choice,) = filled.choices
    assert (choice.token_ids, choice.finish_reason, choice.text) == ((end,), FinishReason.STOP, "")
    if await honours(filler, "ignore_eos"):
        ignoring = await filler.generate(**GAP, **forced, ignore_eos=True)
        assert ignoring.choices[0].finish_reason is FinishReason.LENGTH
        assert ignoring.usage.completion_tokens == 3
    goes_on = await filler.generate(prompt=PROMPT, **forced)
    assert goes_on.usage.completion_tokens == 3


def test_the_metadata_has_the_tokens(worker: EngineWorker, filler: EngineWorker) -> None:
    assert worker.metadata.infill_tokens == {}
    assert filler.metadata.infill_tokens.keys() >= set(NAMES)
    assert all(filler.info.tokenizer.id_of(name) == i for name, i in filler.metadata.infill_tokens.items())


async def test_it_can_be_tokenized_alone(worker: EngineWorker, filler: EngineWorker) -> None:
    ids = await filler.tokenize(GAP["prompt"], suffix=GAP["suffix"])
    assert tuple(ids) == (await filler.generate(**GAP, max_tokens=1)).prompt_token_ids
    assert await filler.tokenize("a", suffix="") == await filler.tokenize("a")
    for wrong, named in ((worker, {"suffix": "b"}), (filler, {"suffix": 5}), (filler, {"suffix": "\ud800"})):
        with pytest.raises(InvalidRequest) as caught:
            await wrong.tokenize("a", **named)
        assert caught.value.param == "suffix"
    with pytest.raises(InvalidRequest, match="suffix goes with a text"):
        await filler.tokenize(messages=[{"role": "user", "content": "Hi"}], suffix="b")


async def test_what_does_not_go_with_it_is_named(filler: EngineWorker) -> None:
    message = [{"role": "user", "content": "Hi"}]
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"messages": message, "suffix": "b"}, "suffix"),
        ({"prompt_token_ids": [65], "suffix": "b"}, "suffix"),
        ({**GAP, "echo": True}, "echo"),
        ({**GAP, "overflow": "truncate_left"}, "overflow"),
        ({**GAP, "messages": message}, "prompt"),
        ({"prompt": "a", "suffix": 5}, "suffix"),
        ({"prompt": "a", "suffix": "\ud800"}, "suffix"),
        ({"prompt": "a", "suffix": "b" * 5_000_000}, "suffix"),
        ({**GAP, "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ]
    for request, param in wrong:
        with pytest.raises(InvalidRequest) as caught:
            await filler.generate(**request, max_tokens=2)
        assert (caught.value.param or "").startswith(param)


async def test_over_the_context_it_is_refused_and_never_cut(rig: Rig, filler: EngineWorker) -> None:
    limit = filler.capabilities.context_length
    for prompt, suffix in (("word " * limit, "b"), ("a", "word " * limit)):
        with pytest.raises(ContextOverflow) as caught:
            await filler.generate(prompt=prompt, suffix=suffix, max_tokens=2)
        assert caught.value.limit == limit
        assert "truncate" not in caught.value.message
    with pytest.raises(ContextOverflow):
        await filler.generate(**GAP, context_length=8, max_tokens=2)


async def test_a_receipt_replays_it(rig: Rig, filler: EngineWorker) -> None:
    if not await honours(filler, "seed"):
        return
    requests: list[dict[str, Any]] = [{"max_tokens": 6, "temperature": 1.0}]
    if await honours(filler, "logit_bias"):
        end = filler.info.tokenizer.id_of(END)
        requests.append({"logit_bias": {end: 100.0}, "max_tokens": 3, "temperature": 0})
    for request in requests:
        _, receipt = await receipt_of(filler, **GAP, **request, receipt="full")
        ends = receipt.parameters["stop_token_ids"]
        assert ends.origin == "infill"
        assert receipt.parameters["overflow"] == Settled("error", "infill")
        assert {filler.info.tokenizer.id_of(name) for name in NAMES} <= set(ends.value)
        entry = Entry("here", receipt)
        (replayed,) = await replay_all(filler, [entry], Terms(2, 0.001), "it", lambda what, share: None)
        assert replayed.verdict in GOOD, replayed

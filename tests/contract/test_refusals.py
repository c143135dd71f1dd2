"""Honour or refuse: each parameter by name, each bad value by name, and the overflow policies."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest

from contract.rigs import ASKING, PROMPT, Rig
from drivetrain.core.errors import ContextOverflow, InvalidRequest, Unsupported
from drivetrain.core.parameters import CHAT_ONLY, ENGINE_PARAMETERS, PARAMETERS
from drivetrain.core.request import GenerateRequest
from drivetrain.worker.worker import EngineWorker


def test_every_field_is_in_the_table() -> None:
    assert {field.name for field in fields(GenerateRequest)} == set(PARAMETERS)
    assert set(ASKING) == ENGINE_PARAMETERS


async def test_an_engine_that_declares_none_refuses_each_by_name(rig: Rig) -> None:
    async with rig.open(unsupported=ENGINE_PARAMETERS) as worker:
        for name in sorted(ENGINE_PARAMETERS):
            extra: dict[str, Any] = {"echo": True} if name == "prompt_logprobs" else {}
            with pytest.raises((Unsupported, InvalidRequest)) as caught:
                await worker.generate(prompt=PROMPT, max_tokens=4, **extra, **{name: ASKING[name]})
            assert caught.value.param == name
            neutral = PARAMETERS[name].neutral
            if neutral is not None:
                await worker.generate(prompt=PROMPT, max_tokens=1, **{name: neutral})


@pytest.mark.parametrize("name", sorted(ENGINE_PARAMETERS - {"images"}))
async def test_what_is_not_declared_is_refused_and_what_is_declared_runs(worker: EngineWorker, name: str) -> None:
    extra: dict[str, Any] = {"echo": True} if name == "prompt_logprobs" else {}
    asked = {"messages": [{"role": "user", "content": PROMPT}]} if name in CHAT_ONLY else {"prompt": PROMPT}
    request = {**asked, "max_tokens": 4, **extra, name: ASKING[name]}
    if name in worker.capabilities.parameters:
        assert (await worker.generate(**request)).usage.completion_tokens >= 1
    else:
        with pytest.raises(Unsupported) as caught:
            await worker.generate(**request)
        assert caught.value.param == name


async def test_an_unknown_name_is_refused_with_a_hint(worker: EngineWorker) -> None:
    with pytest.raises(Unsupported) as caught:
        await worker.generate(prompt=PROMPT, temprature=1)  # type: ignore[call-arg]
    assert caught.value.param == "temprature"
    assert "temperature" in caught.value.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1), ("temperature", 2.1), ("temperature", math.nan), ("temperature", math.inf),
        ("temperature", "hot"), ("temperature", True), ("top_p", 0), ("top_p", 1.1), ("top_p", -1),
        ("top_k", -1), ("top_k", 1.5), ("top_k", 10**40), ("max_tokens", -1), ("max_tokens", 1.5),
        ("max_tokens", "5"), ("max_tokens", 10**30), ("max_tokens", True), ("n", 0), ("n", 1_000_000), ("n", -1),
        ("presence_penalty", 2.5), ("frequency_penalty", -3), ("repetition_penalty", 0), ("min_p", 1.5),
        ("seed", 2**63), ("seed", 1.0), ("seed", "x"), ("logprobs", -1), ("logprobs", 21), ("min_tokens", -1),
        ("stop", 5), ("stop", ["a", 5]), ("stop", [""]), ("stop", ["\ud800"]), ("stop_token_ids", [-1]),
        ("stop_token_ids", "ab"), ("stop_token_ids", [True]), ("stop_sequences", [[]]), ("stop_sequences", [1]),
        ("logit_bias", {"a": 1}), ("logit_bias", {1: math.nan}), ("logit_bias", {1: 101}), ("logit_bias", [1]),
        ("timeout_s", 0), ("timeout_s", -1), ("timeout_s", math.nan), ("timeout_s", 10**8),
        ("overflow", "explode"), ("context_length", 0), ("echo", "yes"), ("ignore_eos", 1),
        ("request_id", ""), ("request_id", 5), ("trace_context", {"a": 1}), ("bad_words_ids", [[]]),
        ("cache_salt", ""), ("cache_salt", 5), ("cache_salt", "s" * 257),
        ("exponential_decay_length_penalty", 5), ("exponential_decay_length_penalty", (1,)),
        ("sequence_bias", [(1, 2.0)]), ("images", 5),
        ("dry_multiplier", -0.1), ("dry_multiplier", 101), ("dry_multiplier", math.nan), ("dry_multiplier", "0.8"),
        ("dry_base", 0.9), ("dry_base", 11), ("dry_base", math.inf), ("dry_allowed_length", 0),
        ("dry_allowed_length", 2.0), ("dry_range", -1), ("dry_range", 2**31), ("dry_sequence_breakers", "\n"),
        ("dry_sequence_breakers", [""]), ("dry_sequence_breakers", [5]), ("dry_sequence_breakers", ["x"] * 17),
        ("dry_sequence_breakers", ["x" * 41]), ("dry_sequence_breakers", ["é" * 21]),
        ("dry_sequence_breakers", ["\ud800"]), ("xtc_probability", -0.1), ("xtc_probability", 1.1),
        ("xtc_probability", math.nan), ("xtc_threshold", -0.1), ("xtc_threshold", 2), ("xtc_threshold", True),
    ],
)  # fmt: skip
async def test_bad_values_are_refused_by_name(worker: EngineWorker, name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await worker.generate(**{"prompt": PROMPT, "max_tokens": 2, name: value})
    assert (caught.value.param or "").split("[")[0].split(" ")[0] == name
    assert len(caught.value.message) < 400


@pytest.mark.parametrize(
    "messages",
    [
        None, "hi", 5, [], [123], [{}], {"role": "user", "content": "x"}, [{"role": "user"}],
        [{"role": "wizard", "content": "x"}], [{"role": "user", "content": None}], [{"role": "user", "content": []}],
        [{"role": "user", "content": [{"type": "text"}]}], [{"role": "user", "content": [{"type": "audio"}]}],
        [{"role": "user", "content": [5]}], [{"role": 5, "content": "x"}], [{"role": "user", "content": "\ud800"}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": "http://x"}]}],
        [{"role": "assistant", "content": "x", "tool_calls": [{}]}],
    ],
)  # fmt: skip
async def test_bad_messages_are_refused(worker: EngineWorker, messages: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await worker.generate(messages=messages, max_tokens=2)
    assert (caught.value.param or "").startswith("messages")


async def test_exactly_one_input(worker: EngineWorker) -> None:
    for request in (
        {},
        {"prompt": "a", "messages": [{"role": "user", "content": "b"}]},
        {"prompt": "a", "prompt_token_ids": [1]},
    ):
        with pytest.raises(InvalidRequest):
            await worker.generate(**request, max_tokens=1)
    wrong: list[Any] = [[], [-1], ["a"], [1.5], 5]
    for bad in wrong:
        with pytest.raises(InvalidRequest) as caught:
            await worker.generate(prompt_token_ids=bad, max_tokens=1)
        assert (caught.value.param or "").startswith("prompt_token_ids")


async def test_images_are_refused_by_a_model_without_eyes(worker: EngineWorker) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    with pytest.raises(Unsupported) as caught:
        await worker.generate(messages=[{"role": "user", "content": [part]}], max_tokens=1)
    assert "images" in caught.value.message


async def test_over_the_context_says_both_numbers(worker: EngineWorker) -> None:
    limit = worker.capabilities.context_length
    ids = [65] * limit
    with pytest.raises(ContextOverflow) as caught:
        await worker.generate(prompt_token_ids=ids, max_tokens=1)
    assert (caught.value.prompt_tokens, caught.value.limit) == (limit, limit)
    assert str(limit) in caught.value.message
    with pytest.raises(ContextOverflow):
        await worker.generate(prompt="x", max_tokens=limit)
    with pytest.raises(ContextOverflow):
        await worker.generate(prompt="x", max_tokens=2**31 - 1)
    with pytest.raises(ContextOverflow):
        await worker.generate(prompt_token_ids=[65] * 60, context_length=64, max_tokens=5)


@pytest.mark.parametrize("policy", ["truncate_left", "truncate_middle"])
async def test_truncation_keeps_what_it_says(worker: EngineWorker, policy: Any) -> None:
    ids = list(range(40, 40 + 100))
    result = await worker.generate(
        prompt_token_ids=ids, context_length=64, max_tokens=4, overflow=policy, temperature=0, ignore_eos=True
    )
    kept = list(result.prompt_token_ids or ())
    assert len(kept) == 60
    assert result.truncated_tokens == 40
    assert result.usage.prompt_tokens == 60
    assert kept == (ids[40:] if policy == "truncate_left" else ids[:30] + ids[-30:])
    assert result.usage.completion_tokens == 4
    direct = await worker.generate(prompt_token_ids=kept, max_tokens=4, temperature=0, ignore_eos=True)
    assert direct.text == result.text


async def test_truncation_never_goes_non_positive(worker: EngineWorker) -> None:
    with pytest.raises(ContextOverflow):
        await worker.generate(prompt_token_ids=[65] * 100, context_length=64, max_tokens=64, overflow="truncate_left")
    result = await worker.generate(
        prompt_token_ids=[65] * 100, context_length=64, max_tokens=63, overflow="truncate_left", ignore_eos=True
    )
    assert result.usage.prompt_tokens == 1


async def test_an_omitted_length_is_the_rest_of_the_context(worker: EngineWorker) -> None:
    result = await worker.generate(prompt_token_ids=[65] * 50, context_length=64, temperature=0, ignore_eos=True)
    assert result.usage.completion_tokens == 14


async def test_ten_megabytes_of_prompt_are_refused_at_once(worker: EngineWorker) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await worker.generate(prompt="word " * 2_000_000, max_tokens=1)
    assert caught.value.param == "prompt"
    with pytest.raises(InvalidRequest):
        await worker.generate(messages=[{"role": "user", "content": "word " * 2_000_000}], max_tokens=1)


async def test_special_tokens_of_the_caller_stay_text(worker: EngineWorker) -> None:
    """A message cannot close its own turn: the spelled token is encoded as plain text."""
    tokenizer = worker.info.tokenizer
    specials = {tokenizer.id_of(s) for s in tokenizer.special_strings}
    plain = await worker.generate(messages=[{"role": "user", "content": "hello"}], max_tokens=1)
    forged = await worker.generate(
        messages=[{"role": "user", "content": "hel" + "".join(sorted(tokenizer.special_strings)) + "lo"}], max_tokens=1
    )
    count = [sum(i in specials for i in r.prompt_token_ids or ()) for r in (plain, forged)]
    assert count[0] == count[1]
    decoded = tokenizer.decode(forged.prompt_token_ids or (), skip_special=False).replace(" ", "")
    assert "hel" + "".join(sorted(tokenizer.special_strings)) + "lo" in decoded


async def test_embeddings(worker: EngineWorker) -> None:
    if not worker.capabilities.embeddings:
        with pytest.raises(Unsupported):
            await worker.embed("x")
        return
    result = await worker.embed(["Hello", "Hello", "Something else entirely"])
    assert len(result.vectors) == 3
    assert all(math.isclose(math.hypot(*v), 1, abs_tol=1e-3) for v in result.vectors)
    assert result.vectors[0] == result.vectors[1] != result.vectors[2]
    assert len(result.vectors[0]) == worker.metadata.embedding_size
    assert worker.metadata.pooling in {"mean", "cls", "last"}
    assert result.usage.prompt_tokens == sum(
        [await worker.count_tokens(t) for t in ("Hello", "Hello", "Something else entirely")]
    )
    assert (await worker.embed([[65, 66]])).usage.prompt_tokens == 2
    unusable: tuple[Any, ...] = ([], "", [""], [[]], [5], 5, [[10**9]], [["a"]])
    for bad in unusable:
        with pytest.raises(InvalidRequest):
            await worker.embed(bad)
    with pytest.raises(ContextOverflow):
        await worker.embed([[65] * (worker.capabilities.context_length + 1)])
    assert worker.status.running == 0

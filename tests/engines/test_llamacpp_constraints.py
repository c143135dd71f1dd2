"""Constraints on the llamacpp engine, on the real small model: what the contract's cases do not reach."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from drivetrain.core.engine import ModelSpec, WeightsFormat
from drivetrain.core.errors import Unsupported
from drivetrain.core.results import FinishReason, TokenLogprob
from drivetrain.engines.llama_server import completion
from drivetrain.engines.llamacpp.engine import LlamaCppEngine
from drivetrain.store.store import Store
from drivetrain.worker.settings import Settings
from drivetrain.worker.worker import EngineWorker

pytestmark = pytest.mark.slow

CONTEXT = 128
ASKED: dict[str, Any] = {"prompt": "Once upon a time there was", "temperature": 1.0, "seed": 5, "max_tokens": 40}


@pytest.fixture(scope="module")
async def worker(smollm2: str) -> AsyncIterator[EngineWorker]:
    options = {"context_length": CONTEXT, "slots": 2}
    path = Store().pull(smollm2).path
    made = EngineWorker(
        LlamaCppEngine(), ModelSpec(name="smollm2", path=path, format=WeightsFormat.GGUF, options=options), Settings()
    )
    await made.start()
    yield made
    await made.stop()


@pytest.mark.parametrize("second_leg", [{"min_tokens": 2}, {"begin_suppress_tokens": [1]}])
async def test_what_takes_a_second_leg_is_refused(worker: EngineWorker, second_leg: dict[str, Any]) -> None:
    (name,) = second_leg
    with pytest.raises(Unsupported, match="constraint") as caught:
        await worker.generate(**ASKED, **second_leg, constraint={"choice": ["yes"]})
    assert caught.value.param == name
    await worker.generate(**ASKED, **second_leg)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_a_constraint_that_llamacpp_drops_is_the_requests_fault(
    worker: EngineWorker, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    """Its llguidance may be older than ours. llama.cpp then answers freely, with a 200."""
    asked: dict[str, Any] = {**ASKED, "temperature": temperature, "constraint": {"regex": "[0-9]{4}"}}
    with monkeypatch.context() as patch:
        patch.setattr(completion, "LARK", "%llguidance {}\nstart: missing\n")
        with pytest.raises(Unsupported, match="does not keep to the constraint") as caught:
            await worker.generate(**asked)
    assert caught.value.param == "constraint"
    assert len((await worker.generate(**asked)).text) == 4


async def test_logprobs_are_those_of_the_same_tokens_without_a_constraint(worker: EngineWorker) -> None:
    """Of the raw logits: bias, temperature and grammar change none of them."""

    async def entries(**more: Any) -> tuple[TokenLogprob, ...]:
        found = (await worker.generate(**{**ASKED, "temperature": 0, "max_tokens": 6}, logprobs=5, **more)).choices[0]
        assert found.logprobs is not None
        return tuple(found.logprobs)

    free = await entries()
    text = b"".join(entry.bytes for entry in free).decode()
    held = await entries(constraint={"choice": [text]})
    assert [entry.token_id for entry in held] == [entry.token_id for entry in free]
    for one, other in zip(free, held, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
        assert [top.token_id for top in one.top] == [top.token_id for top in other.top]


async def test_a_constraint_takes_nothing_from_what_it_allows(worker: EngineWorker) -> None:
    """llama.cpp samples first and asks the grammar then, so the same seed says the same."""
    asked: dict[str, Any] = {**ASKED, "max_tokens": 25}
    free = await worker.generate(**asked)
    held = await worker.generate(**asked, constraint={"regex": r"(.|\n){1000}"})
    assert held.choices[0].token_ids == free.choices[0].token_ids


async def test_characters_of_several_tokens_and_the_limit(worker: EngineWorker) -> None:
    """At each place the limit may cut, in the middle of a character too: no more tokens than were asked for."""
    text = "🌍🎉你好 😀"
    whole = await worker.generate(**ASKED, constraint={"choice": [text]})
    assert whole.text == text
    for limit in range(1, len(whole.choices[0].token_ids)):
        cut = (await worker.generate(**{**ASKED, "max_tokens": limit}, constraint={"choice": [text]})).choices[0]
        assert cut.finish_reason is FinishReason.LENGTH
        assert len(cut.token_ids) == limit
        assert text.startswith(cut.text)


async def test_the_end_of_the_context(worker: EngineWorker) -> None:
    asked: dict[str, Any] = {"prompt": "a " * 100, "temperature": 0, "constraint": {"regex": "[a-c🌍]{500}"}}
    result = await worker.generate(**asked)
    assert result.choices[0].finish_reason is FinishReason.LENGTH
    assert result.usage.prompt_tokens + result.usage.completion_tokens == CONTEXT


async def test_an_end_that_is_ignored_is_not_taken(worker: EngineWorker) -> None:
    """The text could end after each line; it goes on until it must."""
    asked: dict[str, Any] = {**ASKED, "max_tokens": 60, "ignore_eos": True}
    result = await worker.generate(**asked, constraint={"regex": "(a|ab|b)(c(a|b)){0,3}"})
    assert len(result.text) >= 7
    assert result.choices[0].finish_reason is FinishReason.STOP


async def test_ids_of_the_caller_end_it_too(worker: EngineWorker) -> None:
    stop = (await worker.generate(**ASKED, constraint={"choice": ["12 3"]})).choices[0].token_ids[1]
    result = await worker.generate(**ASKED, constraint={"choice": ["12 3"]}, stop_token_ids=[stop])
    assert result.choices[0].matched_stop == stop
    assert result.text == "1"


async def test_many_at_once_with_bans_and_penalties(worker: EngineWorker) -> None:
    ok = {"ok": {"type": "boolean"}}
    schema = {"type": "object", "properties": ok, "required": ["ok"], "additionalProperties": False}
    result = await worker.generate(
        **ASKED, n=4, constraint={"json_schema": schema}, repetition_penalty=1.3, suppress_tokens=[5], min_p=0.05
    )
    assert {json.loads(choice.text)["ok"] for choice in result.choices} <= {True, False}

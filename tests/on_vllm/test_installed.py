"""The installed vLLM against what the engine believes of it."""

from __future__ import annotations

import importlib
import inspect
import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from contract.rigs import PROMPT
from drivetrain.core.errors import InvalidRequest, InvalidSetting, LoadFailed
from drivetrain.core.parameters import ENGINE_PARAMETERS
from drivetrain.engines.vllm import errors
from drivetrain.engines.vllm.capabilities import ALWAYS, NEEDS
from drivetrain.engines.vllm.core import present_parameters
from drivetrain.engines.vllm.engine import VllmEngine
from drivetrain.worker.worker import EngineWorker
from on_vllm.vllm_rig import SETTINGS, spec_with


def test_every_error_class_of_vllm_is_mapped() -> None:
    found: set[str] = set()
    for name in ("vllm.exceptions", "vllm.v1.engine.exceptions"):
        module = importlib.import_module(name)
        found |= {
            item.__name__
            for item in vars(module).values()
            if inspect.isclass(item) and issubclass(item, Exception) and item.__module__ == name
        }
    assert found == errors.KINDS.keys()


def test_this_vllm_has_every_parameter_that_is_needed() -> None:
    assert present_parameters() >= ALWAYS | set(NEEDS.values())


def test_what_is_declared_is_what_this_vllm_has(worker: EngineWorker) -> None:
    by_grammar = {"max_reasoning_tokens"}  # the worker's own, where an engine takes constraints
    assert worker.capabilities.parameters & ENGINE_PARAMETERS == NEEDS.keys() | by_grammar
    assert worker.metadata.vocab_size == 49152
    assert worker.capabilities.max_concurrency == 16
    assert worker.capabilities.context_length == 2048


async def test_an_unknown_engine_argument_is_refused_by_name(shallow: Path) -> None:
    with pytest.raises(InvalidSetting, match="has no engine argument warp_factor"):
        await VllmEngine().load(spec_with(shallow, vllm_args={"warp_factor": 9}), lambda what, share: None)


async def test_a_context_that_the_model_does_not_have_is_refused(shallow: Path) -> None:
    with pytest.raises((LoadFailed, InvalidSetting)):
        await VllmEngine().load(spec_with(shallow, context_length=10**6), lambda what, share: None)


async def test_a_cache_that_is_too_small_says_what_to_raise_and_leaves_nothing(shallow: Path) -> None:
    before = multiprocessing.active_children()
    with pytest.raises(LoadFailed, match="kv_cache_gb"):
        await VllmEngine().load(spec_with(shallow, kv_cache_gb=0.001), lambda what, share: None)
    assert multiprocessing.active_children() == before


async def test_what_vllm_itself_refuses_is_the_callers_error(worker: EngineWorker) -> None:
    """A prompt that fills the context leaves no room for the one token that vLLM wants."""
    ids = [300] * SETTINGS["context_length"]
    with pytest.raises(InvalidRequest):
        await worker.generate(prompt_token_ids=ids, max_tokens=0, echo=True, prompt_logprobs=1)


async def test_the_prompt_is_scored_without_a_token_of_answer(worker: EngineWorker) -> None:
    result = await worker.generate(prompt=PROMPT, max_tokens=0, echo=True, prompt_logprobs=2, n=2)
    assert result.usage.completion_tokens == 0
    for choice in result.choices:
        assert choice.text == PROMPT
        assert choice.logprobs is not None
        assert len(choice.logprobs) == result.usage.prompt_tokens


async def test_a_low_temperature_is_taken_as_it_is(worker: EngineWorker) -> None:
    greedy = await worker.generate(prompt=PROMPT, temperature=0, max_tokens=16, ignore_eos=True)
    cold = await worker.generate(prompt=PROMPT, temperature=1e-4, seed=3, max_tokens=16, ignore_eos=True)
    assert cold.choices[0].token_ids == greedy.choices[0].token_ids


async def test_sequences_that_are_banned_are_not_sampled(worker: EngineWorker) -> None:
    request: dict[str, Any] = {"prompt": PROMPT, "temperature": 0, "max_tokens": 16, "ignore_eos": True}
    free = (await worker.generate(**request)).choices[0].token_ids
    said = (await worker.generate(**request, bad_words_ids=[free[:2]])).choices[0].token_ids
    assert said[0] == free[0]
    assert said[1] != free[1]
    assert free[:2] not in [said[i : i + 2] for i in range(15)]


async def test_a_cached_beginning_is_told_and_a_salt_keeps_it_apart(worker: EngineWorker) -> None:
    ids = [(i * 7) % 900 + 300 for i in range(600)]
    request: dict[str, Any] = {"prompt_token_ids": ids, "max_tokens": 1, "temperature": 0}

    async def cached(**more: Any) -> int:
        return (await worker.generate(**request, **more)).usage.cached_tokens

    assert await cached(cache_salt="one") == 0
    assert await cached(cache_salt="one") > 0
    assert await cached(cache_salt="two") == 0
    assert await cached(cache_salt="one", seed=1) == 0

"""What breaks in the native engine ends the request whose fault it is, by a typed error, and the others go on."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.native_rig import NativeRig, engine_of
from drivetrain.core.engine import EngineRequest
from drivetrain.core.errors import ContextOverflow, DrivetrainError, EngineFailed, InvalidRequest, NotReady, OutOfMemory
from drivetrain.core.events import Delta
from drivetrain.engines.native.engine import NativeEngine
from drivetrain.engines.native.kv.tables import Copy
from drivetrain.engines.sample.shaping import Shape
from drivetrain.worker.worker import EngineWorker
from probe import stepper_of
from reading import StepReading, all_of

ASKED: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "max_tokens": 20}
PROMPTS = [f"{i} is the number of one of some requests that run together" for i in range(6)]
NO_MEMORY = "[enforce fail at alloc_cpu.cpp:120] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"


@pytest.fixture(scope="module")
def rig(checkpoint: Callable[[str], Path]) -> NativeRig:
    return NativeRig(checkpoint)


@pytest.fixture
async def worker(rig: NativeRig) -> AsyncIterator[EngineWorker]:
    async with rig.open(max_stops=10_000) as made:
        yield made
        assert rig.idle(made)
        assert made.status.engine_alive


@pytest.fixture
async def well(worker: EngineWorker) -> list[tuple[int, ...]]:
    """What each prompt says where nothing breaks."""
    return [await outcome(worker, prompt) for prompt in PROMPTS]


async def outcome(worker: EngineWorker, prompt: str, **more: Any) -> Any:
    """The ids, or the error."""
    try:
        return (await worker.generate(prompt=prompt, **{**ASKED, **more})).choices[0].token_ids
    except DrivetrainError as exc:
        return exc


async def beside(worker: EngineWorker, *requests: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """The outcomes of these requests, and of all `PROMPTS`, which came before and run at the same time."""
    engine = engine_of(worker)
    wanted = engine._requests + len(PROMPTS)
    others = [asyncio.create_task(outcome(worker, prompt)) for prompt in PROMPTS]
    while engine._requests < wanted:
        await asyncio.sleep(0.001)

    async def one(request: dict[str, Any]) -> Any:
        try:
            return await worker.generate(**{**ASKED, **request})
        except DrivetrainError as exc:
            return exc

    found = await asyncio.gather(*map(one, requests))
    return list(found), list(await asyncio.gather(*others))


@contextlib.contextmanager
def before_each_pass(worker: EngineWorker, look: Callable[[list[int]], None]) -> Iterator[None]:
    """`look` gets the ids of each forward pass, and may raise."""

    def hook(module: Any, args: Any, kwargs: Any) -> None:
        look(kwargs["input_ids"][0].tolist())

    handle = stepper_of(worker).runner.model.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


async def unsaid(worker: EngineWorker, well: list[tuple[int, ...]]) -> int:
    """An id that is in none of the prompts and answers."""
    said = {i for ids in well for i in ids} | {i for prompt in PROMPTS for i in await worker.tokenize(prompt)}
    return next(i for i in range(100, worker.metadata.vocab_size) if i not in said)


# An exception in the middle of a step


async def test_a_pass_that_one_request_breaks_ends_that_one(worker: EngineWorker, well: list[tuple[int, ...]]) -> None:
    bad = await unsaid(worker, well)

    def look(ids: list[int]) -> None:
        if bad in ids:
            raise RuntimeError("index out of range in self")

    with before_each_pass(worker, look):
        (found,), others = await beside(worker, {"prompt_token_ids": [5, bad, 6]})
    assert isinstance(found, EngineFailed)
    assert isinstance(found.__cause__, RuntimeError)
    assert others == well
    assert isinstance(await outcome(worker, PROMPTS[0]), tuple)


async def test_a_fault_that_comes_once_in_company_is_done_again(
    worker: EngineWorker, well: list[tuple[int, ...]]
) -> None:
    passes = 0

    def look(ids: list[int]) -> None:
        nonlocal passes
        passes += 1
        if passes == 8:
            raise RuntimeError("a wire came loose")

    with before_each_pass(worker, look):
        _, others = await beside(worker)
    assert passes > 8
    assert others == well


async def test_a_fault_that_stays_ends_all_that_were_in_the_step(worker: EngineWorker) -> None:
    def look(ids: list[int]) -> None:
        raise RuntimeError("the device is gone")

    with before_each_pass(worker, look):
        _, others = await beside(worker)
    assert all(isinstance(found, EngineFailed) for found in others)
    assert len({id(found) for found in others}) == len(others)  # each has an error of its own
    assert isinstance(await outcome(worker, PROMPTS[0]), tuple)


async def test_shaping_that_breaks_ends_its_request(
    worker: EngineWorker, well: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    add_to = Shape.add_to

    def broken(self: Shape, edits: Any, row: int, ids: Any) -> None:
        if len(ids) > 12:
            raise KeyError("no such edit")
        add_to(self, edits, row, ids)

    monkeypatch.setattr(Shape, "add_to", broken)
    (found,), others = await beside(worker, {"prompt": "Hi", "logit_bias": {5: 1.0}})
    assert isinstance(found, EngineFailed)
    assert others == well


async def test_what_was_said_before_the_fault_was_streamed(worker: EngineWorker) -> None:
    passes, text = 0, ""

    def look(ids: list[int]) -> None:
        nonlocal passes
        passes += 1
        if passes > 10:
            raise RuntimeError("after ten")

    with before_each_pass(worker, look), pytest.raises(EngineFailed) as caught:
        async for event in worker.stream(prompt=PROMPTS[0], **ASKED):
            if isinstance(event, Delta):
                text += event.text
    assert caught.value.partial is not None
    assert caught.value.partial.choices[0].text == text
    assert caught.value.partial.usage.completion_tokens == 10


# Memory


async def test_a_batch_too_large_for_memory_is_done_one_by_one(
    worker: EngineWorker, well: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = stepper_of(worker).runner
    forward, refused = runner.forward, 0

    def narrow(works: Any) -> Any:
        nonlocal refused
        if len(works) > 2:
            refused += 1
            raise RuntimeError(NO_MEMORY)
        return forward(works)

    monkeypatch.setattr(runner, "forward", narrow)
    _, others = await beside(worker)
    assert refused > 10
    assert others == well


async def test_one_too_large_for_memory_ends_alone(worker: EngineWorker, well: list[tuple[int, ...]]) -> None:
    bad = await unsaid(worker, well)

    def look(ids: list[int]) -> None:
        if ids.count(bad) > 3:
            raise RuntimeError(NO_MEMORY)

    with before_each_pass(worker, look):
        (found,), others = await beside(worker, {"prompt_token_ids": [bad] * 50})
    assert isinstance(found, OutOfMemory)
    assert "alloc" not in found.message
    assert others == well


async def test_a_cache_that_cannot_follow_ends_the_youngest(
    worker: EngineWorker, well: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The choices after the first one need a copy of a block each. The rest lose their blocks and compute again."""
    cache = stepper_of(worker).runner.cache
    apply = cache.apply

    def scarce(self: Any, operations: Any) -> None:
        if any(isinstance(operation, Copy) for operation in operations):
            raise RuntimeError(NO_MEMORY)
        apply(operations)

    with monkeypatch.context() as patch:
        patch.setattr(type(cache), "apply", scarce)
        (found,), others = await beside(worker, {"prompt_token_ids": [9] * 300, "n": 2})
    assert isinstance(found, OutOfMemory)
    assert others == well


# Sizes


async def test_a_request_larger_than_the_cache(rig: NativeRig) -> None:
    """The context is what the cache holds: more is refused, and so much is served beside others."""
    async with rig.open(options={"kv_cache_gb": 1e-4}) as worker:
        context = worker.capabilities.context_length
        assert context < 512
        well = [await outcome(worker, prompt) for prompt in PROMPTS]
        (larger, whole), others = await beside(
            worker,
            {"prompt_token_ids": [9] * (context + 1)},
            {"prompt_token_ids": [9] * (context - 30), "max_tokens": 30},
        )
        assert isinstance(larger, ContextOverflow)
        assert larger.limit == context
        assert whole.usage.completion_tokens == 30
        assert others == well
        many = await worker.generate(prompt_token_ids=[9] * (context - 30), **{**ASKED, "max_tokens": 30}, n=4)
        assert many.usage.completion_tokens == 120
        assert rig.idle(worker)


def request_of(ids: tuple[int, ...], **fields: Any) -> EngineRequest:
    return EngineRequest(request_id="direct", prompt_ids=ids, seeds=(1,), **{"context_length": 512, **fields})


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (request_of((), max_tokens=5), InvalidRequest),
        (request_of((5,) * 600, max_tokens=5, context_length=10_000), ContextOverflow),
        (request_of((5,), max_tokens=None, context_length=10_000), ContextOverflow),
        (request_of((5,) * 600, max_tokens=5, prompt_logprobs=1), ContextOverflow),
    ],
)
async def test_what_the_worker_would_never_send(
    rig: NativeRig, well: list[tuple[int, ...]], request_: EngineRequest, error: type[DrivetrainError]
) -> None:
    """An engine that trusted it would fail in the making of a plan, and then everybody is in it."""
    async with rig.open(options={"kv_cache_gb": 1e-4}) as worker:
        engine = engine_of(worker)
        assert isinstance(engine, NativeEngine)
        assert stepper_of(worker).scheduler.pool.longest < 600
        others = [asyncio.create_task(outcome(worker, prompt)) for prompt in PROMPTS]
        await asyncio.sleep(0.01)
        with pytest.raises(error):
            await all_of(StepReading(engine, request_))
        assert await asyncio.gather(*others) == well


async def test_an_empty_prompt_beside_others(worker: EngineWorker, well: list[tuple[int, ...]]) -> None:
    (empty, no_ids), others = await beside(worker, {"prompt": ""}, {"prompt_token_ids": []})
    assert empty.usage.prompt_tokens == 1  # this tokenizer begins every text
    assert empty.usage.completion_tokens == 20
    assert isinstance(no_ids, InvalidRequest)
    assert others == well


async def test_no_length_a_huge_one_and_none_stated(worker: EngineWorker, well: list[tuple[int, ...]]) -> None:
    prompt = PROMPTS[0]
    (nothing, bare, huge, unstated), others = await beside(
        worker,
        {"prompt": prompt, "max_tokens": 0, "echo": True},
        {"prompt": prompt, "max_tokens": 0},
        {"prompt": prompt, "max_tokens": 2**31 - 1},
        {"prompt": prompt, "max_tokens": None},
    )
    assert (nothing.text, nothing.usage.completion_tokens) == (prompt, 0)
    assert isinstance(bare, InvalidRequest)
    assert isinstance(huge, ContextOverflow)
    assert unstated.usage.prompt_tokens + unstated.usage.completion_tokens == worker.capabilities.context_length
    assert others == well


# Ten thousand stops


async def test_ten_thousand_stops(rig: NativeRig, worker: EngineWorker, well: list[tuple[int, ...]]) -> None:
    """More than the limit is refused by name. Where the limit allows them, their matching costs hardly more."""
    async with rig.open() as strict:
        with pytest.raises(InvalidRequest) as caught:
            await strict.generate(prompt="x", stop=["never"] * 10_000)
        assert caught.value.param == "stop"
    free = (await worker.generate(prompt=PROMPTS[0], **{**ASKED, "max_tokens": 300})).text
    never = [f"{free[i % 200 : i % 200 + 8]}\x00{i}" for i in range(9_999)]  # each begins as the text does
    (found,), others = await beside(worker, {"prompt": PROMPTS[0], "max_tokens": 300, "stop": never})
    assert found.text == free
    assert others == well
    stop = free[100:104]
    (found,), _ = await beside(worker, {"prompt": PROMPTS[0], "max_tokens": 300, "stop": [*never, stop]})
    assert found.text == free[: free.find(stop)]
    assert found.choices[0].matched_stop == stop


async def test_matching_costs_the_same_for_one_stop_and_for_thousands() -> None:
    from drivetrain.text.stops import StopMatcher

    text = "abcdefghij" * 20_000

    def seconds(stops: list[str]) -> float:
        matcher = StopMatcher(stops)
        best = float("inf")
        for _ in range(3):
            state, begun = StopMatcher.ROOT, time.process_time()
            for char in text:
                state = matcher.step(state, char)
            best = min(best, time.process_time() - begun)
        return best

    one = seconds(["abcdefghijX"])
    many = seconds([f"{'abcdefghij' * 2}{i}" for i in range(10_000)])
    assert many < 5 * one


# Logits that are not numbers


@contextlib.contextmanager
def poisoned(worker: EngineWorker, row: int) -> Iterator[None]:
    """The weights of one id's embedding are damaged, for real."""
    import torch

    weights = stepper_of(worker).runner.model.get_input_embeddings().weight
    before = weights[row].clone()
    with torch.no_grad():
        weights[row] = torch.nan
    try:
        yield
    finally:
        with torch.no_grad():
            weights[row] = before


async def test_a_damaged_row_of_the_embedding_harms_who_says_it(
    worker: EngineWorker, well: list[tuple[int, ...]]
) -> None:
    bad = await unsaid(worker, well)
    prompt = await worker.tokenize(PROMPTS[0] * 3)
    sound: dict[str, Any] = {"prompt_token_ids": [*prompt[:60], bad - 1, *prompt[60:]]}
    clean = await worker.generate(**sound, **ASKED)
    with poisoned(worker, bad):
        (in_prompt, on_the_way), others = await beside(
            worker,
            {"prompt_token_ids": [*prompt[:60], bad, *prompt[60:]]},
            {"prompt": "Say it", "logit_bias": {bad: 100.0}, "max_tokens": 5},
        )
        assert isinstance(in_prompt, EngineFailed)
        assert "not numbers" in in_prompt.message
        assert isinstance(on_the_way, EngineFailed)
        assert on_the_way.partial is not None
        assert on_the_way.partial.usage.completion_tokens == 1
        assert others == well
        again = await worker.generate(**sound, **ASKED)
        assert again.usage.cached_tokens > 0  # what is kept beside poisoned blocks is sound
        assert again.choices[0].token_ids == clean.choices[0].token_ids
    assert [await outcome(worker, one) for one in PROMPTS] == well


# The check at rest


async def test_a_leak_is_seen_as_soon_as_nothing_runs(rig: NativeRig) -> None:
    async with rig.open() as worker:
        assert isinstance(await outcome(worker, PROMPTS[0]), tuple)
        assert stepper_of(worker).scheduler.pool.open(10) is not None  # blocks that nobody gives back
        found = await outcome(worker, PROMPTS[1])
        assert isinstance(found, EngineFailed)
        health = engine_of(worker).health()
        assert not health.alive
        assert "a table is nobody's" in health.detail
        assert not worker.status.engine_alive
        with pytest.raises(NotReady):
            await worker.generate(prompt="x", **ASKED)


async def test_the_check_at_rest_costs_little(worker: EngineWorker) -> None:
    for i in range(30):
        await worker.generate(prompt=f"{i} " + "begins as no other " * 5, **{**ASKED, "max_tokens": 2})
    stepper = stepper_of(worker)
    assert stepper.scheduler.pool.num_idle >= 20
    begun = time.process_time()
    for _ in range(100):
        stepper.check_at_rest()
    assert (time.process_time() - begun) / 100 < 0.002

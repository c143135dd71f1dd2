"""What the native engine owes beyond the contract: faults stay where they are, the books agree, one call a step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from contract.native_rig import NativeRig
from drivetrain.core.engine import ModelSpec, WeightsFormat
from drivetrain.core.errors import EngineFailed, InvalidSetting, LoadFailed, OutOfMemory
from drivetrain.engines.native.engine import NativeEngine
from drivetrain.engines.native.kind import KIND
from drivetrain.engines.native.kv.blocks import BLOCK_TOKENS
from drivetrain.engines.native.kv.tables import Clear
from drivetrain.worker.worker import EngineWorker
from probe import engine_of, stepper_of

ASKED: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "max_tokens": 20}


@pytest.fixture(scope="module")
def rig(checkpoint: Callable[[str], Path]) -> NativeRig:
    return NativeRig(checkpoint)


@pytest.fixture
async def worker(rig: NativeRig) -> AsyncIterator[EngineWorker]:
    async with rig.open() as made:
        yield made
        assert rig.idle(made)
        assert stepper_of(made).scheduler.pool.num_held == 0


async def outcome(worker: EngineWorker, prompt: str, **more: Any) -> Any:
    try:
        return (await worker.generate(prompt=prompt, **{**ASKED, **more})).choices[0].token_ids
    except EngineFailed as exc:
        return exc


PROMPTS = [f"Number {i} of some requests that run together" for i in range(6)]


async def test_a_fault_ends_whose_it_is_and_no_other(rig: NativeRig) -> None:
    """Six requests, two at once: who is in the step with the broken one is computed again, who waits sees nothing."""
    async with rig.open(options={"max_batch": 2, "prefix_cache": False}, max_running=6) as worker:
        well = [await outcome(worker, prompt) for prompt in PROMPTS]
        others = [i for i in range(len(PROMPTS)) if i != 2]
        seen = {i for other in others for i in [*well[other], *await worker.tokenize(PROMPTS[other])]}
        bad = set(await worker.tokenize(PROMPTS[2])) - seen  # a step may take less of a prompt than the whole
        assert bad
        model = stepper_of(worker).runner.model

        def broken(module: Any, args: Any, kwargs: Any) -> None:
            if bad & set(kwargs["input_ids"][0].tolist()):
                raise RuntimeError("a wire came loose")

        handle = model.register_forward_pre_hook(broken, with_kwargs=True)
        found = await asyncio.gather(*(outcome(worker, prompt) for prompt in PROMPTS))
        handle.remove()
        assert [i for i, one in enumerate(found) if isinstance(one, EngineFailed)] == [2]
        assert [found[i] for i in others] == [well[i] for i in others]


async def test_no_memory_for_the_cache_is_survived(worker: EngineWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tensors could not follow the accounting: both begin anew, and who was not in the step computes again."""
    well = [await outcome(worker, prompt) for prompt in PROMPTS]
    cache = stepper_of(worker).runner.cache
    apply, calls = cache.apply, 0

    def fail_once(self: Any, operations: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise MemoryError
        apply(operations)

    with monkeypatch.context() as patch:
        patch.setattr(type(cache), "apply", fail_once)
        found = await asyncio.gather(*(outcome(worker, prompt) for prompt in PROMPTS))
    assert any(isinstance(one, OutOfMemory) for one in found)
    assert all(one == wanted for one, wanted in zip(found, well, strict=True) if not isinstance(one, OutOfMemory))
    assert [await outcome(worker, prompt) for prompt in PROMPTS] == well


async def test_a_request_that_makes_no_numbers_fails_alone_and_leaves_nothing(worker: EngineWorker) -> None:
    import torch

    well = [await outcome(worker, prompt) for prompt in PROMPTS]
    stepper = stepper_of(worker)
    target = stepper.runner.model.get_input_embeddings()
    said = {i for ids in well for i in ids} | {i for prompt in PROMPTS for i in await worker.tokenize(prompt)}
    bad = next(i for i in range(100, worker.metadata.vocab_size) if i not in said)

    def poison(module: Any, inputs: Any, output: Any) -> Any:
        return output.masked_fill((inputs[0] == bad)[..., None], torch.nan)

    handle = target.register_forward_hook(poison)
    cleared: list[Clear] = []
    drain = stepper.scheduler.pool.drain

    def watched() -> Any:
        operations = drain()
        cleared.extend(operation for operation in operations if isinstance(operation, Clear))
        return operations

    stepper.scheduler.pool.drain = watched  # type: ignore[method-assign]  # to look at what it gives
    try:
        others = [asyncio.create_task(outcome(worker, prompt)) for prompt in PROMPTS]
        with pytest.raises(EngineFailed):
            await worker.generate(prompt_token_ids=[5, bad, 6], **ASKED)
        assert await asyncio.gather(*others) == well
    finally:
        handle.remove()
    assert [await outcome(worker, prompt) for prompt in PROMPTS] == well
    assert cleared


async def test_a_defect_of_our_own_leaves_nobody_waiting(rig: NativeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig.open() as worker:

        def broken(*_: Any) -> Any:
            raise AssertionError("the books do not agree")

        monkeypatch.setattr(stepper_of(worker).scheduler, "computed", broken)
        async with asyncio.timeout(5):
            found = await asyncio.gather(*(outcome(worker, prompt) for prompt in PROMPTS))
        assert all(isinstance(one, EngineFailed) for one in found)
        assert not worker.status.engine_alive


async def test_a_step_is_one_hand_over_for_all(worker: EngineWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(worker)
    assert isinstance(engine, NativeEngine)
    handed = 0
    hand_over = engine._hand_over

    def counted(*args: Any) -> None:
        nonlocal handed
        handed += 1
        hand_over(*args)

    monkeypatch.setattr(engine, "_hand_over", counted)
    before = engine.steps_run
    await asyncio.gather(*(outcome(worker, prompt) for prompt in PROMPTS))
    assert handed <= engine.steps_run - before + len(PROMPTS)
    assert engine.steps_run - before < 20 + 3 * len(PROMPTS)  # not one after another: that would be 120


async def test_choices_share_the_prompt(worker: EngineWorker) -> None:
    before = stepper_of(worker).steps_run
    result = await worker.generate(prompt=PROMPTS[0] * 4, **ASKED, n=4)
    assert {choice.token_ids for choice in result.choices} == {result.choices[0].token_ids}
    assert stepper_of(worker).steps_run - before <= 24


async def test_a_salt_keeps_beginnings_apart(worker: EngineWorker) -> None:
    """Neither the figure nor the work tells one tenant what another has sent: all of the prompt is computed."""
    runner = stepper_of(worker).runner
    forward, positions = runner.forward, 0

    def counted(works: Any) -> Any:
        nonlocal positions
        positions += sum(work.count for work in works)
        return forward(works)

    async def ask(salt: str | None) -> tuple[int, int]:
        nonlocal positions
        positions = 0
        result = await worker.generate(prompt=PROMPTS[0] * 5, **{**ASKED, "max_tokens": 1}, cache_salt=salt)
        return result.usage.cached_tokens, positions

    runner.forward = counted  # type: ignore[method-assign]  # to count
    try:
        first = await ask("one")
        assert first == (0, await worker.count_tokens(PROMPTS[0] * 5))
        for stranger in ("another", None):
            assert await ask(stranger) == first
        shared = (first[1] - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        for known in ("one", "another", None):
            assert await ask(known) == (shared, first[1] - shared)
    finally:
        runner.forward = forward  # type: ignore[method-assign]


async def test_equal_prompts_at_once_are_computed_once(worker: EngineWorker) -> None:
    """By many clients that send the same at the same moment; another salt computes it for itself."""
    prompt = PROMPTS[1] * 5
    salts = [None, None, None, "one", "one"]
    results = await asyncio.gather(*(worker.generate(prompt=prompt, **ASKED, cache_salt=salt) for salt in salts))
    length = results[0].usage.prompt_tokens
    shared = (length - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    assert sorted(result.usage.cached_tokens for result in results) == [0, 0, *[shared] * 3]
    assert len({result.choices[0].token_ids for result in results}) == 1


async def test_more_choices_than_run_at_once_still_end(rig: NativeRig) -> None:
    async with rig.open(options={"max_batch": 2}) as worker:
        result = await worker.generate(prompt=PROMPTS[0], **ASKED, n=5)
        assert result.usage.completion_tokens == 100


async def test_no_tokens_wanted(worker: EngineWorker) -> None:
    requests: tuple[dict[str, Any], ...] = ({}, {"prompt_logprobs": 1})
    for more in requests:
        result = await worker.generate(prompt="Hello there", echo=True, max_tokens=0, **more)
        assert result.text == "Hello there"
        assert result.usage.completion_tokens == 0


@pytest.mark.parametrize(
    "options", [{"max_batch": 0}, {"max_batch": 1.5}, {"kv_cache_gb": -1}, {"device": "moon"}, {"dtype": "int4"}]
)
async def test_a_setting_that_makes_no_sense_is_named(rig: NativeRig, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting) as caught:
        async with rig.open(options=options):
            pass
    assert caught.value.param in options
    assert set(options) <= set(KIND.settings)


async def test_damaged_weights_are_refused_and_leave_nothing(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    for file in checkpoint("llama").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"x" * 100)
    engine = NativeEngine()
    spec = ModelSpec(name="broken", path=tmp_path, format=WeightsFormat.SAFETENSORS)
    with pytest.raises(LoadFailed):
        await engine.load(spec, lambda what, share: None)
    assert not engine._thread.alive


async def test_a_description_needs_no_weights(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    from drivetrain.engines.native.describe import of_files

    for file in checkpoint("llama").iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    spec = ModelSpec(name="llama", path=tmp_path, format=WeightsFormat.SAFETENSORS)
    described = of_files(spec, lambda what, share: None)
    engine = NativeEngine()
    whole = ModelSpec(name="llama", path=checkpoint("llama"), format=WeightsFormat.SAFETENSORS)
    info = await engine.load(whole, lambda what, share: None)
    await engine.close()
    assert described.capabilities == info.capabilities
    assert described.eos_ids == info.eos_ids
    assert described.default_sampling == info.default_sampling

"""The engine's own part: choices, endings and deaths, with a scripted vLLM in place of the real one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from drivetrain.core.engine import EngineRequest, Media, PromptStep, TokenStep
from drivetrain.core.errors import Cancelled, ContextOverflow, EngineFailed, InvalidRequest, OutOfMemory
from drivetrain.core.prompt import Prompt
from drivetrain.core.results import FinishReason
from drivetrain.core.sampling import Sampling
from drivetrain.engines.vllm import errors
from drivetrain.engines.vllm.core import VllmModel, Widened
from drivetrain.engines.vllm.engine import VllmEngine
from drivetrain.engines.vllm.gauges import Gauges
from drivetrain.text.byte_tokenizer import ByteTokenizer
from reading import StepReading, all_of


class ScriptedCore:
    """Says the ids 1, 2, 3 … to the limit, one an output. Those named in `held` wait after their first id."""

    def __init__(self) -> None:
        self.on_death: Callable[[], None] = lambda: None
        self.seen = Gauges()
        self.alive = True
        self.asked: list[Mapping[str, Any]] = []
        self.let_gone: list[str] = []
        self.held = asyncio.Event()
        self.answers = asyncio.Event()
        self.answers.set()

    async def start(self) -> VllmModel:
        return VllmModel(100, 50, "cpu", "float32", frozenset(), "0")

    async def widen(self, prompt: tuple[int, ...], images: tuple[Any, ...], cache_salt: str | None) -> Widened:
        """Each image takes four tokens, those with the id 9; an image that is an error is raised."""
        for image in images:
            if isinstance(image, Exception):
                raise image
        return Widened(prompt + (9,) * 4 * len(images), "with images")

    async def outputs(
        self, prompt: tuple[int, ...] | Widened, cache_salt: str | None, parameters: Mapping[str, Any], request_id: str
    ) -> AsyncGenerator[Any, None]:
        ids = prompt.token_ids if isinstance(prompt, Widened) else prompt
        self.asked.append(parameters)
        limit = parameters["max_tokens"]
        for i in range(1, limit + 1):
            if i > 1:
                await self.held.wait()
            done = SimpleNamespace(token_ids=[i], logprobs=None, finish_reason="length" if i == limit else None)
            yield SimpleNamespace(outputs=[done], num_cached_tokens=0, prompt_token_ids=ids, prompt_logprobs=None)

    async def let_go(self, request_ids: Iterable[str]) -> None:
        await self.answers.wait()
        self.let_gone += request_ids

    async def close(self) -> None:
        self.alive = False


@pytest.fixture
def core() -> ScriptedCore:
    return ScriptedCore()


@pytest.fixture
def engine(core: ScriptedCore) -> VllmEngine:
    made = VllmEngine()
    made._core, made._tokenizer, made._vocab_size = core, ByteTokenizer(), 50
    core.on_death = made._died
    return made


def request(**changes: Any) -> EngineRequest:
    base: dict[str, Any] = {
        "request_id": "r", "prompt_ids": (7, 8), "context_length": 100, "max_tokens": 3, "seeds": (1,),
    }  # fmt: skip
    return EngineRequest(**{**base, **changes})


async def test_the_prompt_is_told_first_and_once(engine: VllmEngine, core: ScriptedCore) -> None:
    core.held.set()
    steps = await all_of(StepReading(engine, request(seeds=(1, 2))))
    assert isinstance(steps[0], PromptStep)
    rest = [step for step in steps[1:] if isinstance(step, TokenStep)]
    assert len(rest) == len(steps) - 1 == 6
    for index in range(2):
        assert [step.token_ids for step in rest if step.index == index] == [(1,), (2,), (3,)]
    assert [given["seed"] for given in core.asked] == [1, 2]
    assert not engine.busy
    assert not core.let_gone


async def test_an_abort_is_over_when_vllm_has_answered(engine: VllmEngine, core: ScriptedCore) -> None:
    core.answers.clear()
    stream = StepReading(engine, request())
    await anext(stream)
    await anext(stream)
    closing = asyncio.create_task(stream.aclose())
    await asyncio.sleep(0.01)
    assert len(engine._running) == 1
    assert not closing.done()
    core.answers.set()
    await closing
    assert not engine.busy
    assert len(core.let_gone) == 1
    with pytest.raises(Cancelled):
        await anext(stream)


async def test_an_abort_of_what_is_leaving_does_not_cut_the_wait_for_vllm_short(
    engine: VllmEngine, core: ScriptedCore
) -> None:
    core.answers.clear()
    stream = StepReading(engine, request())
    await anext(stream)
    stream.handle.finish(0)
    await asyncio.sleep(0.01)
    stream.handle.abort()
    await asyncio.sleep(0.01)
    assert len(engine._running) == 1
    assert not stream.released.is_set()
    core.answers.set()
    await asyncio.wait_for(stream.released.wait(), 5)
    assert not engine.busy
    assert len(core.let_gone) == 1


async def test_a_choice_that_is_finished_from_outside_is_let_go(engine: VllmEngine, core: ScriptedCore) -> None:
    stream = StepReading(engine, request(seeds=(1, 2)))
    while engine.steps_run < 3:
        await asyncio.sleep(0)
    stream.handle.finish(1)
    core.held.set()
    steps = [step for step in await all_of(stream) if isinstance(step, TokenStep)]
    assert [step.reason for step in steps if step.index == 0][-1] is FinishReason.LENGTH
    assert [step.token_ids for step in steps if step.index == 1] == [(1,)]
    assert [name[-2:] for name in core.let_gone] == ["-1"]


async def test_a_death_ends_every_request_at_once(engine: VllmEngine, core: ScriptedCore) -> None:
    streams = [StepReading(engine, request(seeds=seeds)) for seeds in ((1,), (1, 2))]
    for stream in streams:
        await anext(stream)
    core.alive = False
    core.on_death()
    for stream in streams:
        with pytest.raises(EngineFailed, match="once more"):
            await all_of(stream)
    assert not engine.busy
    assert not engine.health().alive
    assert engine.health().detail == errors.DEAD
    with pytest.raises(EngineFailed):
        await all_of(StepReading(engine, request()))
    core.alive = True
    core.held.set()
    assert len(await all_of(StepReading(engine, request()))) == 4


async def lost_device(*_: Any) -> AsyncGenerator[Any, None]:
    for output in list[Any]():
        yield output
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


async def test_a_device_that_its_process_has_lost_is_the_end_of_that_process(
    engine: VllmEngine, core: ScriptedCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one may use it, so it is not lost to this one: the engine is not alive, and is replaced."""
    other = StepReading(engine, request())
    await anext(other)

    monkeypatch.setattr(core, "outputs", lost_device)
    for stream in (StepReading(engine, request()), other, StepReading(engine, request())):
        with pytest.raises(EngineFailed, match="device has failed") as caught:
            await all_of(stream)
        assert type(caught.value) is EngineFailed
    assert not engine.busy
    assert not engine.health().alive
    assert "device has failed" in engine.health().detail


async def test_a_lost_device_ends_all_at_once_though_vllm_answers_nothing(
    engine: VllmEngine, core: ScriptedCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drivetrain.engines.vllm.engine.TOLD_S", 0.05)
    core.answers.clear()
    other = StepReading(engine, request())
    await anext(other)

    async def close() -> None:
        core.answers.set()

    monkeypatch.setattr(core, "outputs", lost_device)
    monkeypatch.setattr(core, "close", close)
    for stream in (StepReading(engine, request()), other):
        with pytest.raises(EngineFailed, match="device has failed"):
            await asyncio.wait_for(all_of(stream), 5)
    assert not engine.busy
    await asyncio.wait_for(engine.close(), 5)
    assert len(core.let_gone) == 2


async def test_bans_that_leave_nothing_never_reach_vllm(engine: VllmEngine, core: ScriptedCore) -> None:
    with pytest.raises(InvalidRequest):
        await all_of(StepReading(engine, request(sampling=Sampling(suppress_tokens=tuple(range(50))))))
    assert not core.asked
    assert not core.let_gone


async def test_closing_ends_what_runs_and_then_vllm(engine: VllmEngine, core: ScriptedCore) -> None:
    stream = StepReading(engine, request())
    await anext(stream)
    await engine.close()
    assert not core.alive
    assert len(core.let_gone) == 1
    assert stream.released.is_set()
    with pytest.raises(EngineFailed, match="closed"):
        await all_of(StepReading(engine, request()))


def with_images(*images: Any, text: str = "ab", **changes: Any) -> EngineRequest:
    return request(prompt_ids=(), media=Media(Prompt.raw(text, add_bos=False), images), **changes)


async def test_a_prompt_with_images_is_told_as_it_was_widened(engine: VllmEngine, core: ScriptedCore) -> None:
    core.held.set()
    first, *rest = await all_of(StepReading(engine, with_images("an image", seeds=(1, 2))))
    assert isinstance(first, PromptStep)
    assert first.token_ids is not None
    assert first.token_ids[-4:] == (9, 9, 9, 9)
    assert len(first.token_ids) == 6
    assert len(rest) == 6


async def test_the_room_is_what_the_widened_prompt_leaves(engine: VllmEngine, core: ScriptedCore) -> None:
    core.held.set()
    await all_of(StepReading(engine, with_images("an image", max_tokens=None, context_length=20)))
    assert core.asked[0]["max_tokens"] == 14
    for max_tokens, limit, param in ((15, 20, "max_tokens"), (None, 6, "messages")):
        with pytest.raises(ContextOverflow) as caught:
            await all_of(StepReading(engine, with_images("an image", max_tokens=max_tokens, context_length=limit)))
        assert (caught.value.prompt_tokens, caught.value.param) == (6, param)
    with pytest.raises(ContextOverflow):  # and not what the image raises
        await all_of(StepReading(engine, with_images(ValueError("seen"), text="a" * 20, context_length=20)))
    assert len(core.asked) == 1


@pytest.mark.parametrize(
    ("raised", "typed"),
    [
        (RuntimeError("Expected there to be 2 prompt placeholders"), InvalidRequest),
        (ValueError("at most 1 image"), InvalidRequest),
        (MemoryError(), OutOfMemory),
        (EngineFailed(errors.DEAD), EngineFailed),
    ],
)
async def test_what_is_wrong_with_images_is_typed(
    engine: VllmEngine, core: ScriptedCore, raised: Exception, typed: type[Exception]
) -> None:
    with pytest.raises(typed) as caught:
        await all_of(StepReading(engine, with_images(raised)))
    assert not isinstance(caught.value, InvalidRequest) or caught.value.param == "images"
    assert not core.asked
    assert not core.let_gone
    assert not engine.busy


async def test_one_that_does_not_answer_is_closed_all_the_same(
    engine: VllmEngine, core: ScriptedCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drivetrain.engines.vllm.engine.TOLD_S", 0.05)

    async def close() -> None:
        core.alive = False
        core.answers.set()  # as the real one: whoever waits for vLLM is freed by its end

    monkeypatch.setattr(core, "close", close)
    core.answers.clear()
    stream = StepReading(engine, request())
    await anext(stream)
    await asyncio.wait_for(engine.close(), 5)
    assert not core.alive
    assert stream.released.is_set()
    assert not engine.busy

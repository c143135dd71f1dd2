"""Embeddings of the native engine: the library's vectors, in bounded passes beside the streams, call by call."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import drivetrain
import tiny
from contract.native_rig import NativeRig
from drivetrain.core.engine import EmbedItem
from drivetrain.core.errors import EngineFailed, InvalidSetting, OutOfMemory
from drivetrain.engines.checkpoint.quiet import quiet_library
from drivetrain.engines.native.embedding import CallOver, EmbedCall, NativeEmbedder
from drivetrain.engines.native.engine import NativeEngine
from drivetrain.engines.native.schedule.budget import Room, TokenBudget
from drivetrain.engines.native.schedule.scheduler import Scheduler
from drivetrain.worker.worker import EngineWorker
from probe import engine_of, stepper_of

RUNS = [name for name in tiny.CAUSAL if name not in {"falcon", "bloom"}]
IDS = [[5 + (7 * i + j * j) % 60 for j in range(length)] for i, length in enumerate((1, 3, 100, 17, 33, 200, 2))]
"""Texts as ids: some shorter than a pass of `PASS` tokens, some longer, and longer than any sliding window."""

PASS = 16
SHORT = TokenBudget(alone=PASS, beside=PASS)
STREAM: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "max_tokens": 40}


@pytest.fixture
def short_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scheduler, "budget", property(lambda _: SHORT, lambda *_: None), raising=False)


@pytest.fixture(scope="module")
def rig(checkpoint: Callable[[str], Path]) -> NativeRig:
    return NativeRig(checkpoint)


@pytest.fixture
async def worker(rig: NativeRig) -> AsyncIterator[EngineWorker]:
    async with rig.open() as made:
        yield made
        assert rig.idle(made)
        assert embedder_of(made)._open is None


def embedder_of(worker: EngineWorker) -> NativeEmbedder:
    engine = engine_of(worker)
    assert isinstance(engine, NativeEngine)
    embedder = stepper_of(worker).embedder
    assert embedder is not None
    return embedder


def by_hand(folder: Path) -> list[Any]:
    """The mean of what the class says of each text alone, with its own attention."""
    import torch
    import transformers as hf

    with quiet_library(), torch.no_grad():
        model = hf.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval().base_model
        hidden = [model(input_ids=torch.tensor([ids])).last_hidden_state[0].mean(dim=0) for ids in IDS]
    return [(mean / mean.norm()).tolist() for mean in hidden]


def close(vectors: Any, wanted: Any) -> None:
    assert len(vectors) == len(wanted)
    for vector, expected in zip(vectors, wanted, strict=True):
        assert vector == pytest.approx(expected, abs=1e-4)
        assert math.hypot(*vector) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("name", RUNS)
async def test_vectors_are_those_of_the_class(name: str, checkpoint: Callable[[str], Path], short_passes: None) -> None:
    async with NativeRig(checkpoint, name).open() as worker:
        made = await worker.embed(IDS)
        assert worker.metadata.embedding_size == len(made.vectors[0])
        assert made.usage.prompt_tokens == sum(map(len, IDS))
    close(made.vectors, by_hand(checkpoint(name)))


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
async def test_each_pooling_is_that_of_the_other_engine(
    pooling: str, rig: NativeRig, checkpoint: Callable[[str], Path], short_passes: None
) -> None:
    async with rig.open(options={"pooling": pooling}) as worker:
        assert worker.metadata.pooling == pooling
        ours = (await worker.embed(IDS)).vectors
    async with drivetrain.Worker.open(checkpoint("llama"), engine="transformers", pooling=pooling) as worker:
        close(ours, (await worker.embed(IDS)).vectors)


async def test_a_pooling_that_is_none_is_refused(rig: NativeRig) -> None:
    with pytest.raises(InvalidSetting) as caught:
        async with rig.open(options={"pooling": "max"}):
            pass
    assert caught.value.param == "pooling"


async def test_texts_share_passes_that_are_bounded(worker: EngineWorker, short_passes: None) -> None:
    lengths: list[int] = []
    model = embedder_of(worker)._runner.model.base_model
    handle = model.register_forward_pre_hook(
        lambda module, args, kwargs: lengths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    try:
        await worker.embed([[7, 8, 9]] * 40)
        assert lengths == [16] * 7 + [8]  # 120 ids without padding
        lengths.clear()
    finally:
        handle.remove()


async def test_a_pass_takes_what_prompts_would_and_leaves_them_half(worker: EngineWorker) -> None:
    embedder, budget = embedder_of(worker), TokenBudget(alone=64, beside=8)
    embedder.add(EmbedCall([(5,) * 500] * 3, 1))
    done = [0]

    def num_tokens(room: Room) -> int:
        embedder.step(room)
        assert embedder._open is not None
        done.append(embedder._open.num_done)
        return done[-1] - done[-2]

    for room, texts, prompts in (
        (Room(budget, [], prompts=0), 64, 0),
        (Room(budget, [9], prompts=0), 8, 0),
        (Room(budget, [], prompts=1), 32, 32),
        (Room(budget, [9], prompts=1), 4, 4),
    ):
        assert num_tokens(room.shared()) == texts
        assert not prompts or room.take(0, 100) == prompts
    while not embedder.idle:
        embedder.step(Room(budget, []))


async def test_streams_and_texts_do_not_touch_each_other(worker: EngineWorker, short_passes: None) -> None:
    prompts = [f"Number {i} of some requests" for i in range(4)]
    alone = [(await worker.generate(prompt=prompt, **STREAM)).text for prompt in prompts]
    vectors = (await worker.embed(IDS)).vectors
    streams = [asyncio.create_task(worker.generate(prompt=prompt, **STREAM)) for prompt in prompts]
    embeds = [asyncio.create_task(worker.embed(IDS)) for _ in range(3)]
    assert [(await stream).text for stream in streams] == alone
    for task in embeds:
        close((await task).vectors, vectors)


class PassLog:
    """Writes down on the engine's own thread what the passes did: read from the event loop, their number is of some
    moment, and no one knows how many more there will be before a request reaches the engine."""

    def __init__(self, embedder: NativeEmbedder, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_beside = 0
        """Passes beside running requests."""
        self.added: list[tuple[EmbedCall, int]] = []
        """Each call, and the passes before it."""
        self.over: dict[EmbedCall, int] = {}
        """After how many passes a call was over."""
        step, add = embedder.step, embedder.add

        def logged_step(room: Room) -> list[CallOver]:
            self.num_beside += not embedder._scheduler.idle
            over = step(room)
            self.over.update({one.job: embedder.passes_run for one in over})
            return over

        def logged_add(call: EmbedCall) -> list[CallOver]:
            self.added.append((call, embedder.passes_run))
            return add(call)

        monkeypatch.setattr(embedder, "step", logged_step)
        monkeypatch.setattr(embedder, "add", logged_add)

    def num_passes(self, index: int) -> int:
        """Between the coming and the end of a call."""
        call, before = self.added[index]
        return self.over[call] - before


async def test_a_stream_goes_on_while_texts_are_embedded(
    worker: EngineWorker, short_passes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = PassLog(embedder_of(worker), monkeypatch)
    many = asyncio.create_task(worker.embed(IDS * 60))
    while not embedder_of(worker).passes_run:
        await asyncio.sleep(0)
    await worker.generate(prompt="Hello", **STREAM)
    assert not many.done()
    assert 0 < log.num_beside <= STREAM["max_tokens"] + 5  # one pass a step, and a few for the prompt
    assert len((await many).vectors) == len(IDS) * 60


async def test_calls_take_turns(worker: EngineWorker, short_passes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    log = PassLog(embedder_of(worker), monkeypatch)
    large = asyncio.create_task(worker.embed([[5] * 100] * 100))
    while not embedder_of(worker).passes_run:
        await asyncio.sleep(0)
    await worker.embed([[6] * 20])
    assert not large.done()
    assert log.num_passes(1) < 20
    assert len((await large).vectors) == 100


async def test_a_call_that_is_given_up_ends_at_once(worker: EngineWorker, short_passes: None) -> None:
    embedder = embedder_of(worker)
    task = asyncio.create_task(worker.embed([[5] * 500] * 500))
    while embedder.passes_run < 3:
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert embedder.idle
    assert embedder._open is None
    passes = embedder.passes_run
    close((await worker.embed(IDS[:2])).vectors, (await worker.embed(IDS[:2])).vectors)
    assert embedder.passes_run - passes == 2


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), OutOfMemory),
        (MemoryError(), OutOfMemory),
        (RuntimeError("a wire came loose"), EngineFailed),
        (KeyboardInterrupt(), EngineFailed),
    ],
)
async def test_a_fault_ends_the_calls_of_its_pass_and_no_stream(
    worker: EngineWorker, monkeypatch: pytest.MonkeyPatch, error: BaseException, wanted: type[EngineFailed]
) -> None:
    well = (await worker.embed(IDS)).vectors
    answer = (await worker.generate(prompt="Hello", **STREAM)).text
    embedder = embedder_of(worker)

    def fail(*_: Any) -> Any:
        raise error

    stream = asyncio.create_task(worker.generate(prompt="Hello", **STREAM))
    with monkeypatch.context() as patch:
        patch.setattr(embedder._runner, "hidden_states", fail)
        found = await asyncio.gather(worker.embed(IDS), worker.embed(IDS), return_exceptions=True)
    assert [type(one) for one in found] == [wanted, wanted]
    assert found[0] is not found[1]
    assert (await stream).text == answer
    close((await worker.embed(IDS)).vectors, well)


async def test_a_text_without_a_usable_vector_fails_alone(worker: EngineWorker) -> None:
    import torch

    embedder = embedder_of(worker)
    well = (await worker.embed([[8, 9]])).vectors
    handle = embedder._runner.model.get_input_embeddings().register_forward_hook(
        lambda module, inputs, output: output.masked_fill((inputs[0] == 77)[..., None], torch.nan)
    )
    try:
        found = await asyncio.gather(
            worker.embed([[8, 9]] * 3), worker.embed([[5], [76, 77, 78], [5]]), worker.embed([[8, 9]]),
            return_exceptions=True,
        )  # fmt: skip
    finally:
        handle.remove()
    assert isinstance(found[1], EngineFailed)
    assert "no usable embedding" in found[1].message
    assert not isinstance(found[0], BaseException)
    assert not isinstance(found[2], BaseException)
    close(found[0].vectors, well * 3)
    close(found[2].vectors, well)
    close((await worker.embed([[8, 9]])).vectors, well)


async def test_after_the_end_there_are_none(rig: NativeRig) -> None:
    async with rig.open() as worker:
        engine = engine_of(worker)
        assert await engine.embed([]) == []
        many = asyncio.create_task(engine.embed([EmbedItem((5,) * 500)] * 500))
        await asyncio.sleep(0.05)
        await worker.stop(0)
        with pytest.raises(drivetrain.errors.DrivetrainError):
            await many
        with pytest.raises(EngineFailed):
            await engine.embed([EmbedItem((5,))])

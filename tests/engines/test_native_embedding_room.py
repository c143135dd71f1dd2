"""Texts to embed take blocks of the same cache as requests: in their order, and back at their end, whatever it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from contract.native_rig import NativeRig
from drivetrain.core.engine import EngineRequest, TokenStep
from drivetrain.core.errors import EngineFailed
from drivetrain.core.sampling import Sampling
from drivetrain.engines.native.embedding import CallOver, EmbedCall, NativeEmbedder
from drivetrain.engines.native.engine import NativeEngine
from drivetrain.engines.native.kv.blocks import BlockPool
from drivetrain.engines.native.kv.tables import Clear
from drivetrain.engines.native.schedule.budget import Room, TokenBudget
from drivetrain.engines.native.schedule.scheduler import Scheduler
from drivetrain.engines.native.schedule.sequence import Job
from drivetrain.engines.native.stepper import Ended, NewStep, Stepper
from drivetrain.worker.worker import EngineWorker
from probe import engine_of, stepper_of

LENGTH = 200
"""Ids of a text: many passes of `PASS`."""

PASS = 16
SHORT = TokenBudget(alone=PASS, beside=PASS)


@pytest.fixture(scope="module")
def rig(checkpoint: Callable[[str], Path]) -> NativeRig:
    return NativeRig(checkpoint)


@pytest.fixture
async def worker(rig: NativeRig) -> AsyncIterator[EngineWorker]:
    """Its cache holds one text and a little more."""
    async with rig.open(options={"context_length": 256}) as made:
        pool_of(made).groups[0].num_blocks = pool_of(made).blocks_for(256)
        yield made
        assert rig.idle(made)


@pytest.fixture
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scheduler, "budget", property(lambda _: SHORT, lambda *_: None), raising=False)


@pytest.fixture
def embedder(worker: EngineWorker) -> NativeEmbedder:
    engine = engine_of(worker)
    assert isinstance(engine, NativeEngine)
    embedder = stepper_of(worker).embedder
    assert embedder is not None
    return embedder


def pool_of(worker: EngineWorker) -> BlockPool:
    return stepper_of(worker).scheduler.pool


def text(first: int = 5) -> tuple[int, ...]:
    return tuple(first + i % 60 for i in range(LENGTH))


def job_of(number: int, length: int, max_tokens: int) -> Job:
    request = EngineRequest(
        request_id=str(number),
        prompt_ids=(7,) * length,
        context_length=256,
        max_tokens=max_tokens,
        seeds=(0,),
        sampling=Sampling(temperature=0.0),
    )
    return Job.of(request, number)


def vectors_of(embedder: NativeEmbedder, call: EmbedCall) -> list[tuple[float, ...]]:
    """To its end."""
    over: list[CallOver] = []
    while not over:
        over = embedder.step(Room(SHORT, []))
    assert over == [CallOver(call)]
    return call.vectors


def answer(stepper: Stepper) -> list[int]:
    """The ids that the only request still gets."""
    outputs = []
    while not stepper.scheduler.idle:
        outputs += stepper._step(stepper.scheduler.room())
    assert [output.error for output in outputs if isinstance(output, Ended)] == [None]
    steps = [output.step for output in outputs if isinstance(output, NewStep)]
    return [token_id for step in steps if isinstance(step, TokenStep) for token_id in step.token_ids]


async def test_texts_and_requests_in_a_cache_too_small_for_both(worker: EngineWorker, short_steps: None) -> None:
    stepper = stepper_of(worker)
    asked: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "max_tokens": 60}
    prompts = [[9 + i] * (20 + 15 * i) for i in range(6)]
    texts = [text(5 + i)[: 40 * (i + 1)] for i in range(5)]

    async def ids(prompt: list[int]) -> tuple[int, ...]:
        return (await worker.generate(prompt_token_ids=prompt, **asked)).choices[0].token_ids

    async def vectors() -> Any:
        return (await worker.embed([list(ids) for ids in texts])).vectors

    answers, wanted = [await ids(prompt) for prompt in prompts], await vectors()
    tasks: list[asyncio.Task[Any]] = []
    for round_ in range(12):
        tasks.append(asyncio.create_task(ids(prompts[round_ % 6]) if round_ % 2 else vectors()))
        await asyncio.sleep(0.005)
    found = await asyncio.gather(*tasks)
    assert stepper.counts.preemptions > 0
    for round_, one in enumerate(found):
        if round_ % 2:
            assert one == answers[round_ % 6]
        else:
            assert [list(vector) for vector in one] == [pytest.approx(vector, abs=1e-5) for vector in wanted]
    assert pool_of(worker).num_held == 0


async def test_younger_requests_give_way_to_a_text_and_older_ones_do_not(
    worker: EngineWorker, embedder: NativeEmbedder
) -> None:
    stepper, pool = stepper_of(worker), pool_of(worker)
    stepper.add(job_of(1, 100, 20))
    alone = answer(stepper)
    embedder.add(call := EmbedCall([text()], 2))
    wanted = vectors_of(embedder, call)

    stepper.add(job_of(3, 100, 20))
    stepper.step()
    passes = embedder.passes_run
    embedder.add(call := EmbedCall([text()], 4))
    assert embedder.step(Room(SHORT, [])) == []
    assert (embedder.passes_run, stepper.counts.preemptions) == (passes, 0)
    assert len(answer(stepper)) == 19  # the first one came before the text
    assert vectors_of(embedder, call) == wanted

    stepper.add(job_of(6, 100, 20))
    stepper.step()
    embedder.add(call := EmbedCall([text()], 5))
    embedder.step(Room(SHORT, []))
    assert stepper.counts.preemptions == 1
    assert pool.num_held == pool.blocks_for(LENGTH)
    assert vectors_of(embedder, call) == wanted
    assert answer(stepper) == alone[1:]
    assert pool.num_held == 0


async def test_a_request_waits_for_the_blocks_of_a_text(
    worker: EngineWorker, embedder: NativeEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is nothing to compute for it until then, which is no fault."""
    stepper, pool = stepper_of(worker), pool_of(worker)
    embedder.add(call := EmbedCall([text()], 1))
    embedder.step(Room(SHORT, []))
    stepper.add(job_of(2, 100, 20))
    passes: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(stepper.runner, "forward", passes.append)
        assert stepper._step(stepper.scheduler.room()) == []
    assert not passes
    assert pool.num_held == pool.blocks_for(LENGTH)
    assert len(vectors_of(embedder, call)) == 1
    assert len(answer(stepper)) == 20


async def test_a_request_that_waits_for_room_comes_before_younger_texts(
    worker: EngineWorker, embedder: NativeEmbedder, short_steps: None
) -> None:
    """Two texts fit, and each begins in the pass that ends another one: there would never be room for the request."""
    stepper, job, short = stepper_of(worker), job_of(2, 150, 20), text()[:101]
    older, younger = EmbedCall([short], 1), EmbedCall([short] * 10, 3)
    embedder.add(older)
    embedder.step(Room(SHORT, []))
    stepper.add(job)
    embedder.add(younger)
    over: list[CallOver] = []
    while not job.ended:
        over += [one for one in stepper.step() if isinstance(one, CallOver)]
        assert CallOver(younger) not in over, "it starves"
    assert over == [CallOver(older)]
    assert vectors_of(embedder, younger) == [pytest.approx(older.vectors[0], abs=1e-5)] * 10


async def test_a_call_that_is_dropped_in_the_middle_of_a_text_holds_nothing(
    worker: EngineWorker, embedder: NativeEmbedder
) -> None:
    pool = pool_of(worker)
    embedder.add(call := EmbedCall([text(), text(6)], 1))
    assert embedder.step(Room(SHORT, [])) == []
    assert pool.num_held == pool.blocks_for(LENGTH)
    assert embedder.drop(call) == [CallOver(call)]
    assert pool.num_held == 0
    assert embedder.idle
    assert embedder.drop(call) == []


async def test_the_blocks_of_a_text_that_fails_are_released_and_cleared(
    worker: EngineWorker, embedder: NativeEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = pool_of(worker)
    embedder.add(first := EmbedCall([text()], 1))
    wanted = vectors_of(embedder, first)
    embedder.add(call := EmbedCall([text()], 2))
    embedder.step(Room(SHORT, []))
    held = pool.num_held

    def fail(*_: Any) -> Any:
        raise RuntimeError("a wire came loose")

    with monkeypatch.context() as patch:
        patch.setattr(embedder._runner, "hidden_states", fail)
        (over,) = embedder.step(Room(SHORT, []))
    assert over.job is call
    assert isinstance(over.error, EngineFailed)
    assert pool.num_held == 0
    assert embedder.idle
    cleared = pool.drain()
    assert len(cleared) == held
    assert all(isinstance(operation, Clear) for operation in cleared)
    embedder.add(again := EmbedCall([text()], 3))
    assert vectors_of(embedder, again) == wanted


async def test_a_text_whose_blocks_are_lost_begins_again(worker: EngineWorker, embedder: NativeEmbedder) -> None:
    embedder.add(call := EmbedCall([text()], 1))
    wanted = list(vectors_of(embedder, call))
    embedder.add(again := EmbedCall([text()], 2))
    embedder.step(Room(SHORT, []))
    stepper_of(worker).reset()
    assert pool_of(worker).num_held == 0
    assert vectors_of(embedder, again) == wanted

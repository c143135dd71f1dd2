"""Exactly one ending, and nothing held after it: cancel, deadline, faults, readers that go away."""

from __future__ import annotations

import asyncio
import gc
import time
from contextlib import suppress
from typing import Any

import pytest

from contract.rigs import LONG, PROMPT, Rig
from drivetrain.core.errors import (
    Cancelled,
    ContextOverflow,
    DeadlineExceeded,
    DrivetrainError,
    EngineFailed,
    NotReady,
    OutOfMemory,
    Overloaded,
)
from drivetrain.core.events import ChoiceFinished, Delta, Finished, Started
from drivetrain.core.results import FinishReason
from drivetrain.core.status import State
from drivetrain.worker.worker import EngineWorker
from probe import runs_of

ENDLESS: dict[str, Any] = {"prompt": PROMPT, "temperature": 0, "ignore_eos": True, "max_tokens": LONG}


async def until_idle(rig: Rig, worker: EngineWorker, within_s: float = 30.0) -> None:
    async with asyncio.timeout(within_s):
        while worker.status.running or not rig.idle(worker):
            await asyncio.sleep(0.002)


async def read_some(stream: object, count: int) -> None:
    for _ in range(count):
        await stream.__anext__()  # type: ignore[attr-defined]


async def works(worker: EngineWorker) -> None:
    assert (await worker.generate(**{**ENDLESS, "max_tokens": 3})).usage.completion_tokens == 3


async def test_aclose_frees_the_slot_within_a_step(rig: Rig, worker: EngineWorker) -> None:
    for _ in range(20):  # a busy machine may stop this thread, but not the engine's, in the middle of this
        stream = worker.stream(**ENDLESS)
        await read_some(stream, 4)
        steps = rig.steps(worker)
        await stream.aclose()
        assert worker.status.running == 0
        assert rig.idle(worker)
        closed = rig.steps(worker)
        await asyncio.sleep(0.05)
        assert rig.steps(worker) - closed <= 2
        if rig.steps(worker) - steps <= 2:  # the one under way when it was closed, and one to notice
            break
    else:
        pytest.fail("never within a step")
    await stream.aclose()
    await works(worker)


async def test_breaking_out_of_the_loop_frees_it_too(rig: Rig, worker: EngineWorker) -> None:
    async for event in worker.stream(**ENDLESS):
        if isinstance(event, Delta):
            break
    await until_idle(rig, worker)
    assert worker.status.endings["cancelled"] >= 1
    await works(worker)


async def test_forgetting_a_stream_that_was_never_read(rig: Rig, worker: EngineWorker) -> None:
    stream = worker.stream(**ENDLESS)
    del stream
    gc.collect()
    await until_idle(rig, worker)
    await asyncio.sleep(0)
    assert not runs_of(worker)


async def test_cancelling_the_reading_task(rig: Rig, worker: EngineWorker) -> None:
    async def read() -> None:
        async for _ in worker.stream(**ENDLESS):
            pass

    task = asyncio.create_task(read())
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    del task
    await until_idle(rig, worker)
    await works(worker)


async def test_a_held_stream_that_nobody_reads_is_cancelled(rig: Rig) -> None:
    async with rig.open(reader_timeout_s=1.0) as worker:
        stream = worker.stream(**ENDLESS)
        await read_some(stream, 2)
        async with asyncio.timeout(30):
            while runs_of(worker):
                await asyncio.sleep(0.02)
        await until_idle(rig, worker)
        if stream.result().usage.completion_tokens == LONG:  # a quick engine had said it all by then
            with pytest.raises(StopAsyncIteration):
                await read_some(stream, LONG + 10)
        else:
            with pytest.raises(Cancelled) as caught:
                await read_some(stream, LONG + 10)
            assert caught.value.partial is not None
        await works(worker)


async def test_the_slot_follows_the_engine_not_the_reader(rig: Rig, worker: EngineWorker) -> None:
    """An answer that is done holds nothing, though its reader has not come for it yet."""
    stream = worker.stream(**{**ENDLESS, "max_tokens": 5})
    await read_some(stream, 1)
    await until_idle(rig, worker)
    assert worker.status.running == 0
    rest = [event async for event in stream]
    assert isinstance(rest[-1], Finished)


async def test_a_deadline_carries_what_was_said(rig: Rig, worker: EngineWorker) -> None:
    for timeout_s in (0.12, 0.25, 0.5, 1.0, 2.0):  # on a busy machine, the first may be over before anything was said
        events = []
        started = time.monotonic()
        with pytest.raises(DeadlineExceeded) as caught:
            async for event in worker.stream(**{**ENDLESS, "max_tokens": LONG}, timeout_s=timeout_s):
                events.append(event)
                await asyncio.sleep(0.01)
        assert time.monotonic() - started < 30
        if events:
            break
    assert not any(isinstance(event, Finished) for event in events)
    partial = caught.value.partial
    assert partial is not None
    streamed = "".join(event.text for event in events if isinstance(event, Delta))
    assert partial.choices[0].text.startswith(streamed)
    assert partial.choices[0].finish_reason is None
    assert partial.usage.prompt_tokens > 0
    await until_idle(rig, worker)
    await works(worker)


async def test_a_deadline_while_waiting_for_a_slot(rig: Rig) -> None:
    async with rig.open(max_running=1) as worker:
        first = worker.stream(**ENDLESS)
        await read_some(first, 2)
        with pytest.raises(DeadlineExceeded) as caught:
            await worker.generate(**ENDLESS, timeout_s=0.05)
        assert caught.value.partial is not None
        assert caught.value.partial.choices == ()
        assert worker.status.waiting == 0
        await first.aclose()
        await works(worker)


async def test_one_more_than_the_queue_holds_is_refused_at_once(rig: Rig) -> None:
    async with rig.open(max_running=1, max_waiting=1) as worker:
        first = worker.stream(**ENDLESS)
        await read_some(first, 2)
        second = asyncio.create_task(worker.generate(**{**ENDLESS, "max_tokens": 2}))
        await asyncio.sleep(0.01)
        with pytest.raises(Overloaded) as caught:
            await worker.generate(**ENDLESS)
        assert caught.value.retry_after_s > 0
        await first.aclose()
        assert (await second).usage.completion_tokens == 2


@pytest.mark.parametrize("step", range(12))
@pytest.mark.parametrize("n", [1, 2])
async def test_a_fault_at_any_step_is_one_typed_ending(rig: Rig, worker: EngineWorker, step: int, n: int) -> None:
    events = []
    with rig.fault(worker, step, RuntimeError("a wire came loose")), pytest.raises(EngineFailed) as caught:
        async for event in worker.stream(**{**ENDLESS, "max_tokens": 12, "n": n}):
            events.append(event)
    assert not any(isinstance(event, Finished) for event in events)
    assert sum(isinstance(event, Started) for event in events) <= 1
    partial = caught.value.partial
    assert partial is not None
    if events:
        for choice in partial.choices:
            streamed = "".join(e.text for e in events if isinstance(e, Delta) and e.index == choice.index)
            assert choice.text == streamed
            assert choice.finish_reason is None
    await until_idle(rig, worker)
    await works(worker)


async def test_out_of_memory_is_typed_and_the_next_request_works(rig: Rig, worker: EngineWorker) -> None:
    errors: list[BaseException] = [MemoryError()]
    if rig.name == "fake":
        errors = [OutOfMemory("out of memory")]
    elif not rig.name.startswith("remote"):  # its upstream's memory is another process's
        import torch

        errors += [
            torch.OutOfMemoryError("CUDA out of memory."),
            RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        ]
    for error in errors:
        with rig.fault(worker, 2, error), pytest.raises(OutOfMemory):
            await worker.generate(**ENDLESS)
        await until_idle(rig, worker)
        await works(worker)


async def test_a_failed_request_fails_again_the_same_way_when_read_again(rig: Rig, worker: EngineWorker) -> None:
    stream = worker.stream(**ENDLESS)
    with rig.fault(worker, 1, RuntimeError("once")), pytest.raises(EngineFailed):
        await read_some(stream, LONG)
    with pytest.raises(EngineFailed):
        await stream.__anext__()
    done = worker.stream(**{**ENDLESS, "max_tokens": 1})
    assert [event async for event in done]
    with pytest.raises(StopAsyncIteration):
        await done.__anext__()


async def test_one_choice_ends_and_the_others_run_on(rig: Rig, worker: EngineWorker) -> None:
    request: dict[str, Any] = {**ENDLESS, "max_tokens": 30, "temperature": 1.0, "n": 3, "seed": 5}
    free = await worker.generate(**request)
    stop = free.choices[1].text[3:6]
    result = await worker.generate(**request, stop=[stop])
    for before, after in zip(free.choices, result.choices, strict=True):
        if stop in before.text:
            assert after.text == before.text[: before.text.find(stop)]
        else:
            assert after.text == before.text


async def test_endings_are_counted_once(rig: Rig) -> None:
    async with rig.open() as worker:
        await works(worker)
        stream = worker.stream(**ENDLESS)
        await read_some(stream, 2)
        await stream.aclose()
        with rig.fault(worker, 0, RuntimeError("broken")), suppress(EngineFailed):
            await worker.generate(**ENDLESS)
        with suppress(DeadlineExceeded):
            await worker.generate(**ENDLESS, timeout_s=0.001)
        assert dict(worker.status.endings) == {
            "finished": 1, "cancelled": 1, "engine_error": 1, "deadline_exceeded": 1,
        }  # fmt: skip


async def test_drain_lets_running_ones_end_and_refuses_new_ones(rig: Rig) -> None:
    async with rig.open() as worker:
        stream = worker.stream(**{**ENDLESS, "max_tokens": 20})
        await read_some(stream, 2)
        draining = asyncio.create_task(worker.drain(20))
        await asyncio.sleep(0.01)
        assert worker.state is State.DRAINING
        with pytest.raises(NotReady):
            await worker.generate(**ENDLESS)
        events = [event async for event in stream]
        assert isinstance(events[-1], Finished)
        await draining


async def test_drain_waits_for_readers_that_are_behind(rig: Rig) -> None:
    """The engine is done and its slot free, but half of the answer is still to be read: that is not cut off."""
    async with rig.open() as worker:
        stream = worker.stream(**{**ENDLESS, "max_tokens": 20})
        await read_some(stream, 2)
        await until_idle(rig, worker)
        draining = asyncio.create_task(worker.drain(20))
        await asyncio.sleep(0.05)
        events = [event async for event in stream]
        assert isinstance(events[-1], Finished)
        await asyncio.wait_for(draining, 5)


async def test_stopping_ends_what_runs_and_is_idempotent(rig: Rig) -> None:
    async with rig.open() as worker:
        stream = worker.stream(**ENDLESS)
        await read_some(stream, 2)
        await worker.stop()
        with pytest.raises(Cancelled):
            await read_some(stream, LONG + 10)
        await worker.stop()
        assert worker.state is State.STOPPED
        with pytest.raises(NotReady):
            await worker.generate(**ENDLESS)


async def test_each_choice_finishes_once(worker: EngineWorker) -> None:
    events = [event async for event in worker.stream(**{**ENDLESS, "max_tokens": 9, "n": 3})]
    finished = [event.index for event in events if isinstance(event, ChoiceFinished)]
    assert sorted(finished) == [0, 1, 2]


async def test_a_mix_of_everything_at_once_leaves_nothing(rig: Rig) -> None:
    async with rig.open(max_waiting=100) as worker:

        async def one(i: int) -> str:
            try:
                stream = worker.stream(**{**ENDLESS, "max_tokens": 3 + i % 9}, timeout_s=0.05 if i % 7 == 3 else 60)
                async for _ in stream:
                    if i % 4 == 1:
                        return "broke"
            except DrivetrainError as exc:
                return exc.code
            return "finished"

        outcomes = await asyncio.gather(*(one(i) for i in range(40)))
        assert outcomes.count("finished") >= 20
        await until_idle(rig, worker, 20)
        assert sum(worker.status.endings.values()) == 40


async def test_an_answer_that_may_be_shortened_gets_what_the_prompt_leaves(worker: EngineWorker) -> None:
    asked: dict[str, Any] = {"prompt": PROMPT, "ignore_eos": True, "overflow": "shorten_answer"}
    length = (await worker.generate(**asked, max_tokens=1)).usage.prompt_tokens
    for left in (1, 5):
        result = await worker.generate(**asked, max_tokens=32_000, context_length=length + left)
        assert result.usage.completion_tokens == left
        assert result.choices[0].finish_reason is FinishReason.LENGTH
    assert (await worker.generate(**asked, max_tokens=2, context_length=length + 5)).usage.completion_tokens == 2
    over: list[dict[str, Any]] = [{"context_length": length}, {"context_length": length + 2, "min_tokens": 3}]
    for more in over:
        if "min_tokens" in more and "min_tokens" not in worker.capabilities.parameters:
            continue
        with pytest.raises(ContextOverflow):
            await worker.generate(**asked, max_tokens=32_000, **more)
    with pytest.raises(ContextOverflow):
        await worker.generate(**{**asked, "overflow": "error"}, max_tokens=32_000, context_length=length + 5)

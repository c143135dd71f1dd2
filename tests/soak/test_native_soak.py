"""Two thousand requests on the native engine that end in every way: each is accounted for, and nothing is left."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_mixed_endings import num_threads

import drivetrain
from contract.native_rig import engine_of, one_thread
from drivetrain.core.errors import DeadlineExceeded, EngineFailed
from drivetrain.engines.native.schedule.budget import TokenBudget
from drivetrain.telemetry.memory import host_memory
from drivetrain.worker.worker import EngineWorker
from probe import runs_of, stepper_of

pytestmark = pytest.mark.soak

REQUESTS = 2000
AT_ONCE = 32
BROKEN = 777
"""An id that the model cannot bear."""

SHARED = [[10 + kind * 7 + i % 50 for i in range(90)] for kind in range(4)]
"""Beginnings that many prompts have in common."""


def drawn(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """What is to become of a request, and the request."""
    fate = rng.choices(["any", "left", "deadline", "stopped", "broken"], [50, 25, 10, 12, 3])[0]
    own = [rng.randrange(10, 700) for _ in range(rng.choice([1, 5, 30, 150]))]
    prompt = [*(rng.choice(SHARED)[: rng.choice([40, 90])] if rng.random() < 0.6 else ()), *own]
    request: dict[str, Any] = {
        "max_tokens": rng.choice([1, 4, 20, 60]),
        "n": rng.choice([1, 1, 1, 2, 3]),
        "temperature": rng.choice([0, 1.0]),
        "seed": rng.choice([None, None, rng.randrange(1000)]),
        "top_p": rng.choice([None, 0.9]),
        "presence_penalty": rng.choice([None, 0.5]),
        "logprobs": rng.choice([None, None, 3]),
        "cache_salt": rng.choice([None, None, "one", "another"]),
        "suppress_tokens": [BROKEN],
        "ignore_eos": rng.random() < 0.7,
    }
    if fate == "left":
        request |= {"max_tokens": 80, "ignore_eos": True}
    elif fate == "deadline":
        request |= {"timeout_s": rng.choice([0.001, 0.02, 0.1]), "max_tokens": 100, "ignore_eos": True}
    elif fate == "stopped":
        request |= {"stop": rng.choice([["a", "e"], ["t", "zz", "\x00"]]), "stop_token_ids": [rng.randrange(10, 700)]}
    elif fate == "broken":
        prompt.append(BROKEN)
    return fate, {"prompt_token_ids": prompt, **request}


async def leave(worker: EngineWorker, request: dict[str, Any], rng: random.Random) -> str:
    """Read a little of it and go, in one of three ways."""
    stream = worker.stream(**request)
    how, after, count = rng.choice(["forget", "close", "cancel"]), rng.randint(0, 6), 0
    if after:
        async for _ in stream:
            count += 1
            if count >= after:
                break
    if how == "close":
        await stream.aclose()
    elif how == "cancel":
        task = asyncio.create_task(stream.__anext__())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return "cancelled"


async def one(worker: EngineWorker, rng: random.Random) -> str:
    """The ending, as the reader saw it."""
    fate, request = drawn(rng)
    if fate == "left":
        return await leave(worker, request, rng)
    if fate == "broken":
        with pytest.raises(EngineFailed):
            await worker.generate(**request)
        return EngineFailed.code
    try:
        result = await worker.generate(**request)
    except DeadlineExceeded as exc:
        return exc.code
    assert len(result.choices) == request["n"]
    assert all(choice.finish_reason is not None for choice in result.choices)
    assert all(1 <= len(choice.token_ids) <= request["max_tokens"] for choice in result.choices)
    return "finished"


async def storm(worker: EngineWorker, requests: int, seed: int) -> Counter[str]:
    rng, gate = random.Random(seed), asyncio.Semaphore(AT_ONCE)

    async def gated() -> str:
        async with gate:
            return await one(worker, rng)

    endings = Counter(await asyncio.gather(*(gated() for _ in range(requests))))
    gc.collect()
    async with asyncio.timeout(30):
        while worker.status.running or runs_of(worker) or engine_of(worker).busy:
            await asyncio.sleep(0.01)
    return endings


def check_nothing_held(worker: EngineWorker) -> None:
    engine = engine_of(worker)
    scheduler = stepper_of(worker).scheduler
    assert scheduler.idle
    scheduler.check()
    assert scheduler.pool.num_held == 0
    assert scheduler.pool.num_idle <= scheduler.pool.num_blocks
    assert not engine._running
    assert not engine._inbox
    assert engine.health().alive
    assert engine.health().active == 0


def endings_of(worker: EngineWorker) -> Counter[str]:
    return Counter(worker.status.endings)


@pytest.mark.timeout(600)
async def test_two_thousand_requests_leave_nothing(checkpoint: Callable[[str], Path], record_property: Any) -> None:
    """The cache holds three long requests, so requests are preempted and kept beginnings give way all the time."""
    with one_thread():
        async with drivetrain.Worker.open(
            checkpoint("llama"),
            engine="native",
            kv_cache_gb=0.0006,
            max_batch=24,
            max_running=AT_ONCE,
            max_waiting=AT_ONCE,
        ) as worker:
            scheduler = stepper_of(worker).scheduler
            scheduler._headroom = 1
            # oneDNN keeps a kernel for each number of rows that it has met, and there is an end to them; but not within
            # these requests, unless steps are short.
            scheduler.budget = TokenBudget(alone=48, beside=16)

            def look(module: Any, args: Any, kwargs: Any) -> None:
                if BROKEN in kwargs["input_ids"][0].tolist():
                    raise RuntimeError("it cannot bear this one")

            stepper_of(worker).runner.model.register_forward_pre_hook(look, with_kwargs=True)
            await storm(worker, REQUESTS // 4, seed=1)  # warm: pools, allocator, the cache itself
            check_nothing_held(worker)
            threads, tasks, before = num_threads(), len(asyncio.all_tasks()), endings_of(worker)
            begun = time.monotonic()

            endings = await storm(worker, REQUESTS // 2, seed=2)
            half = host_memory().allocated_bytes
            endings += await storm(worker, REQUESTS // 2, seed=3)
            grown = host_memory().allocated_bytes - half

            record_property("seconds", round(time.monotonic() - begun, 1))
            record_property("bytes that the second half added", grown)
            record_property("endings", dict(endings))
            record_property("preemptions", scheduler.num_preemptions)
            assert endings.total() == REQUESTS
            assert endings_of(worker) - before == endings
            assert set(endings) == {"finished", "cancelled", "deadline_exceeded", EngineFailed.code}
            assert scheduler.num_preemptions > 20
            check_nothing_held(worker)
            assert num_threads() <= threads
            assert len(asyncio.all_tasks()) <= tasks
            assert grown < 15_000_000
            last = await worker.generate(prompt="still there", max_tokens=3, ignore_eos=True)
            assert last.usage.completion_tokens == 3

"""Thousands of requests that end in every way, on the real engine; then threads, slots and memory are as before."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import drivetrain
from drivetrain.core.engine import ModelSpec, WeightsFormat
from drivetrain.core.errors import DrivetrainError
from drivetrain.engines.fake import FakeEngine, Script
from drivetrain.telemetry.memory import host_memory
from drivetrain.worker.settings import Settings
from drivetrain.worker.worker import EngineWorker
from probe import engine_of, runs_of

pytestmark = pytest.mark.soak


async def one(worker: EngineWorker, rng: random.Random, outcomes: Counter[str]) -> None:
    request: dict[str, Any] = {
        "prompt": "word " * rng.randint(1, 20),
        "max_tokens": rng.choice([1, 3, 10, 40]),
        "n": rng.choice([1, 1, 2]),
        "temperature": rng.choice([0, 1.0]),
        "ignore_eos": True,
        "stop": rng.choice([None, ["a"], ["e ", "zz"]]),
        "logprobs": rng.choice([None, 2]) if "logprobs" in worker.capabilities.parameters else None,
        "timeout_s": rng.choice([None, None, None, 0.002, 0.05]),
    }
    leave_after = rng.choice([None, None, 1, 4])
    how = rng.choice(["break", "close", "cancel"])
    try:
        stream = worker.stream(**request)
        count = 0
        async for _ in stream:
            count += 1
            if leave_after is not None and count >= leave_after:
                break
        else:
            outcomes["finished"] += 1
            return
        if how == "close":
            await stream.aclose()
        elif how == "cancel":
            task = asyncio.create_task(stream.__anext__())
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        outcomes["left"] += 1
    except DrivetrainError as exc:
        outcomes[exc.code] += 1


async def storm(worker: EngineWorker, requests: int, at_once: int) -> Counter[str]:
    rng, outcomes, gate = random.Random(1), Counter[str](), asyncio.Semaphore(at_once)

    async def gated() -> None:
        async with gate:
            await one(worker, rng, outcomes)

    await asyncio.gather(*(gated() for _ in range(requests)))
    gc.collect()
    async with asyncio.timeout(30):
        while worker.status.running or runs_of(worker):
            await asyncio.sleep(0.01)
    return outcomes


def num_threads() -> int:
    """But those of the pools, which are bounded and grow only when all of theirs are busy at once."""
    pools = ("drivetrain-prepare", "drivetrain-fetch", "asyncio_")
    return sum(not thread.name.startswith(pools) for thread in threading.enumerate())


async def check_nothing_left(worker: EngineWorker, requests: int, at_once: int) -> None:
    await storm(worker, requests // 10, at_once)  # warm: caches, pools, allocator
    threads, tasks = num_threads(), len(asyncio.all_tasks())
    memory = host_memory().allocated_bytes
    ended = sum(worker.status.endings.values())
    outcomes = await storm(worker, requests, at_once)
    assert sum(outcomes.values()) == requests
    assert sum(worker.status.endings.values()) - ended == requests
    assert outcomes["finished"] > requests // 10
    assert outcomes["left"] > requests // 10
    assert outcomes["deadline_exceeded"] > 0
    assert set(outcomes) <= {"finished", "left", "deadline_exceeded"}
    assert num_threads() <= threads
    assert len(asyncio.all_tasks()) <= tasks
    assert host_memory().allocated_bytes - memory < 60_000_000
    final = await worker.generate(prompt="still there", max_tokens=3, ignore_eos=True)
    assert final.usage.completion_tokens == 3


async def test_the_transformers_engine(checkpoint: Callable[[str], Path]) -> None:
    async with drivetrain.Worker.open(checkpoint("llama"), engine="transformers", max_waiting=100) as worker:
        await check_nothing_left(worker, requests=2000, at_once=16)
        engine: Any = engine_of(worker)
        assert not engine.busy


async def test_the_layer_itself() -> None:
    spec = ModelSpec(name="fake", path=Path(), format=WeightsFormat.NONE)
    worker = EngineWorker(FakeEngine(Script(repeat=True, max_concurrency=64)), spec, Settings(max_waiting=1000))
    async with worker:
        await check_nothing_left(worker, requests=10_000, at_once=256)

"""`kill -9` of vLLM's engine process in mid-stream: typed endings, not ready, a restart, ready again."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import drivetrain
from contract.rigs import PROMPT
from drivetrain.core.errors import EngineFailed
from drivetrain.core.events import Delta, Finished
from drivetrain.core.status import State
from drivetrain.worker.worker import EngineWorker
from probe import engine_of

SETTINGS: dict[str, Any] = {
    "context_length": 2048,
    "kv_cache_gb": 0.5,
    "max_batch": 4,
    "vllm_args": {"enforce_eager": True},
}
ENDLESS: dict[str, Any] = {"prompt": PROMPT, "temperature": 0, "ignore_eos": True, "max_tokens": 1500}


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """The dead vLLM goes here, with what it never closed, and not as the interpreter ends."""
    yield
    gc.collect()


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def until_gone(pids: list[int]) -> None:
    async with asyncio.timeout(120):
        while any(map(is_there, pids)):
            await asyncio.sleep(0.1)


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.timeout(1200)
async def test_every_request_ends_and_it_comes_back(shallow: Path) -> None:
    async with drivetrain.Worker.open(shallow, engine="vllm", **SETTINGS) as worker:
        streams = [worker.stream(**ENDLESS, n=n) for n in (1, 1, 2)]
        for stream in streams:
            async for event in stream:
                if isinstance(event, Delta):
                    break
        (pid,) = pids_of(worker)
        left_over = [pid, *children_of(pid)]
        os.kill(pid, signal.SIGKILL)
        for stream in streams:
            with pytest.raises(EngineFailed) as caught:
                async with asyncio.timeout(60):
                    async for event in stream:
                        assert not isinstance(event, Finished)
            assert caught.value.partial is not None
            assert caught.value.partial.usage.completion_tokens > 0
        assert not worker.status.engine_alive
        waiting = asyncio.create_task(worker.generate(**{**ENDLESS, "max_tokens": 2}, timeout_s=900))
        async with asyncio.timeout(900):
            while worker.stats.restarts == 0:
                await asyncio.sleep(0.1)
        assert worker.state is State.READY
        assert (await waiting).usage.completion_tokens == 2  # it waited for the engine that took the place
        assert (await worker.generate(**{**ENDLESS, "max_tokens": 4})).usage.completion_tokens == 4
        assert pids_of(worker) != (pid,)
        await until_gone(left_over)


def pids_of(worker: EngineWorker) -> tuple[int, ...]:
    engine: Any = engine_of(worker)
    pids: tuple[int, ...] = engine._core.pids
    return pids

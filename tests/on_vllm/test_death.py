"""`kill -9` of vLLM's engine process in mid-stream: typed endings, not ready, a restart, ready again."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from contract.rigs import PROMPT
from drivetrain.core.errors import EngineFailed, NotReady
from drivetrain.core.events import Delta, Finished
from drivetrain.worker.worker import Worker
from on_vllm.vllm_rig import VllmRig

ENDLESS = {"prompt": PROMPT, "temperature": 0, "ignore_eos": True, "max_tokens": 1500}


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def until_gone(pids: list[int]) -> None:
    async with asyncio.timeout(120):
        while any(map(is_there, pids)):
            await asyncio.sleep(0.1)


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.timeout(1200)
async def test_every_request_ends_and_it_comes_back(rig: VllmRig) -> None:
    async with rig.open() as worker:
        streams = [worker.stream(**ENDLESS, n=n) for n in (1, 1, 2)]
        for stream in streams:
            async for event in stream:
                if isinstance(event, Delta):
                    break
        (pid,) = rig.core.pids
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
        with pytest.raises((NotReady, EngineFailed)):
            await worker.generate(**{**ENDLESS, "max_tokens": 2})
        await alive_again(worker)
        assert (await worker.generate(**{**ENDLESS, "max_tokens": 4})).usage.completion_tokens == 4
        assert rig.core.pids != (pid,)
        await until_gone(left_over)


async def alive_again(worker: Worker) -> None:
    async with asyncio.timeout(900):
        while not worker.status.engine_alive:
            await asyncio.sleep(0.1)

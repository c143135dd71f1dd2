"""Engines that really die under a worker: typed endings, not ready, loaded again, ready."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import drivetrain
from drivetrain.core.errors import Cancelled, DeadlineExceeded, EngineFailed, NotReady, OutOfMemory
from drivetrain.core.events import Delta
from drivetrain.core.status import State
from drivetrain.engines.llamacpp import errors
from drivetrain.engines.llamacpp.child.connection import ChildConnection
from drivetrain.engines.llamacpp.child.process import Launch, ServerProcess
from drivetrain.engines.llamacpp.engine import LlamaCppEngine
from drivetrain.store.store import Store
from drivetrain.worker.worker import EngineWorker
from probe import engine_of, pid_of

ENDLESS: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True}


async def begun(worker: EngineWorker, number: int) -> list[Any]:
    streams = [worker.stream(**ENDLESS) for _ in range(number)]
    for stream in streams:
        async for event in stream:
            if isinstance(event, Delta):
                break
    return streams


async def all_end_typed(streams: list[Any]) -> None:
    for stream in streams:
        with pytest.raises(EngineFailed) as caught:
            async with asyncio.timeout(30):
                await read_to_the_end(stream)
        assert caught.value.partial is not None
        assert caught.value.partial.usage.completion_tokens > 0


async def read_to_the_end(stream: Any) -> None:
    async for _ in stream:
        pass


async def ready_again(worker: EngineWorker, restarts: int) -> None:
    async with asyncio.timeout(120):
        while worker.stats.restarts < restarts or worker.state is not State.READY:
            await asyncio.sleep(0.05)
    assert (await worker.generate(**{**ENDLESS, "max_tokens": 5})).usage.completion_tokens == 5
    assert worker.status.running == worker.status.waiting == 0


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_llamacpp_killed_in_mid_stream_twice() -> None:
    async with drivetrain.Worker.open("smollm2-135m", engine="llamacpp", context_length=1024, slots=2) as worker:
        for time in (1, 2):
            streams = await begun(worker, 2)
            engine: Any = engine_of(worker)
            assert isinstance(engine, LlamaCppEngine)
            pid: int = pid_of(engine)
            os.kill(pid, signal.SIGKILL)
            await all_end_typed(streams)
            waited = await worker.generate(**{**ENDLESS, "max_tokens": 5})
            assert waited.usage.completion_tokens == 5
            await ready_again(worker, time)
            assert engine_of(worker) is not engine
            assert not is_there(pid)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_llamacpp_that_hangs_while_each_request_meets_its_deadline() -> None:
    settings: dict[str, Any] = {"context_length": 1024, "slots": 2, "stall_s": 3.0}
    async with drivetrain.Worker.open("smollm2-135m", engine="llamacpp", **settings) as worker:
        await worker.generate(**{**ENDLESS, "max_tokens": 2})
        engine: Any = engine_of(worker)
        os.kill(pid_of(engine), signal.SIGSTOP)
        async with asyncio.timeout(120):
            while not worker.stats.restarts:
                with pytest.raises((DeadlineExceeded, EngineFailed, NotReady)):
                    await worker.generate(**ENDLESS, timeout_s=0.5)
                await asyncio.sleep(0.1)
        await ready_again(worker, 1)


COUNTS_FOR_EVER = '%llguidance {}\nstart: %json {"type": "array", "minItems": 1000000000}\n'


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_llamacpp_ends_where_it_would_take_more_memory_than_it_was_given(smollm2: str) -> None:
    """Our trial refuses such a grammar, so llama.cpp is asked past it."""
    model = Store().pull(smollm2).path
    process = ServerProcess(Launch(model=str(model), slots=1, context_length=256, spare_bytes=2**28))
    await process.start_async()
    try:
        connection = ChildConnection(process.host, process.port, process.key)
        asked = {"prompt": "x", "n_predict": 8, "ignore_eos": True}
        assert (await connection.ask("POST", "/completion", asked))["tokens_predicted"] == 8
        with pytest.raises((OSError, EOFError)):
            await connection.ask("POST", "/completion", {**asked, "grammar": COUNTS_FOR_EVER})
        error = errors.while_running(process.death())
        assert isinstance(error, OutOfMemory)
        assert error.ended_engine
    finally:
        await asyncio.to_thread(process.stop)


@pytest.mark.parametrize("engine", ["native", "transformers"])
async def test_a_thread_that_has_ended(checkpoint: Callable[[str], Path], engine: str) -> None:
    async with drivetrain.Worker.open(checkpoint("llama"), engine=engine, dtype="float32") as worker:
        streams = await begun(worker, 1)
        old: Any = engine_of(worker)
        old._thread._jobs.put(None)  # what ends it, after what it is at
        async with asyncio.timeout(60):
            while worker.stats.restarts == 0:
                await asyncio.sleep(0.05)
        for stream in streams:
            async with asyncio.timeout(30):
                with contextlib.suppress(EngineFailed):
                    await read_to_the_end(stream)
        await ready_again(worker, 1)
        assert engine_of(worker) is not old


@pytest.mark.parametrize("engine", ["native", "transformers"])
async def test_a_thread_that_hangs_lets_its_requests_go(
    checkpoint: Callable[[str], Path], engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot be ended from here; but nobody waits for it any longer, whole answers and vectors neither."""
    monkeypatch.setattr("drivetrain.engines.base.thread.JOIN_TIMEOUT_S", 2.0)
    monkeypatch.setattr("drivetrain.worker.health.closing.CLOSE_S", 0.5)
    let_go = threading.Event()
    opening = drivetrain.Worker.open(checkpoint("llama"), engine=engine, dtype="float32", stall_s=1.0)
    try:
        async with opening as worker:
            held: Any = engine_of(worker)
            held._thread.submit(let_go.wait)
            waiting = [asyncio.ensure_future(worker.generate(**ENDLESS)), asyncio.ensure_future(worker.embed("x"))]
            async with asyncio.timeout(60):
                while worker.state is not State.FAILED:
                    await asyncio.sleep(0.05)
                for task in waiting:
                    with pytest.raises((EngineFailed, Cancelled, NotReady)):
                        await task
                while worker.status.running:
                    await asyncio.sleep(0.05)
            with pytest.raises(NotReady, match="restart this process"):
                await worker.generate(**ENDLESS)
            let_go.set()
    finally:
        let_go.set()

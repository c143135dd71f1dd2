"""A thread that hangs: whoever waits for it is told when it is given up, and what ran on it is let go."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from drivetrain.core.errors import EngineFailed
from drivetrain.engines.base import thread as thread_module
from drivetrain.engines.base.thread import EngineThread


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    monkeypatch.setattr(thread_module, "JOIN_TIMEOUT_S", 0.1)
    let_go = threading.Event()
    yield let_go
    let_go.set()


async def test_a_call_on_a_thread_that_hangs_ends_with_the_thread(hanging: threading.Event) -> None:
    thread = EngineThread("hangs")
    call = asyncio.create_task(thread.call(hanging.wait))
    await asyncio.sleep(0.02)
    await thread.close()
    with pytest.raises(EngineFailed, match="hangs"):
        await asyncio.wait_for(call, 2)


async def test_a_cancelled_call_does_not_outlast_it(hanging: threading.Event) -> None:
    thread = EngineThread("hangs")
    call = asyncio.create_task(thread.call(hanging.wait))
    await asyncio.sleep(0.02)
    call.cancel()
    await asyncio.sleep(0.02)
    assert not call.done()
    await thread.close()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(call, 2)


async def test_a_thread_that_is_well_answers_to_the_last() -> None:
    others = asyncio.all_tasks()  # the loop is the whole session's, and so are some workers
    thread = EngineThread("well")
    call = asyncio.create_task(thread.call(lambda: 7))
    await asyncio.sleep(0)
    await thread.close()
    assert await asyncio.wait_for(call, 2) == 7
    assert asyncio.all_tasks() <= others

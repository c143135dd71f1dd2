"""A request that has ended is gone at once, with its prompt: nothing of it waits for the cycle collector."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from drivetrain.core.engine import ModelSpec, WeightsFormat
from drivetrain.core.errors import DrivetrainError
from drivetrain.core.events import Delta
from drivetrain.core.prompt import Prompt
from drivetrain.core.request import GenerateRequest
from drivetrain.engines.fake import FakeEngine, Script
from drivetrain.text.byte_tokenizer import ByteTokenizer
from drivetrain.worker.embedding import Embedding
from drivetrain.worker.run import Run
from drivetrain.worker.settings import Settings
from drivetrain.worker.stream import Reader
from drivetrain.worker.worker import EngineWorker

SPEC = ModelSpec(name="fake", path=Path(), format=WeightsFormat.NONE)
ENDLESS = Script(repeat=True, step_delay_s=0.001)


class Text(str):
    """One that can be watched."""


class OwnTokenizer(ByteTokenizer):
    """Breaks, or waits, if it is told to."""

    waits = False

    def __init__(self) -> None:
        self.broken = False
        self.begun = threading.Event()
        self.gate = threading.Event()
        self.gate.set()

    def encode(self, prompt: Prompt) -> list[int]:
        self.begun.set()
        self.gate.wait(60)
        if self.broken:
            raise ValueError("no")
        return super().encode(prompt)


class Rig:
    def __init__(self) -> None:
        self.tokenizer = OwnTokenizer()
        self.engine = FakeEngine(ENDLESS, tokenizer=self.tokenizer)
        remake = lambda: FakeEngine(ENDLESS, tokenizer=self.tokenizer)  # noqa: E731 - it has no other use
        self.worker = EngineWorker(self.engine, SPEC, Settings(max_running=1, max_waiting=0), remake=remake)


@pytest.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr("drivetrain.worker.worker.WATCH_INTERVAL_S", 0.02)
    monkeypatch.setattr("drivetrain.worker.health.revival.FIRST_S", 0.02)
    made = Rig()
    async with made.worker:
        yield made


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Any]]:
    """All that were made."""
    made: list[weakref.ref[Any]] = []
    for kind in (Run, Embedding):
        begin = kind.__init__

        def begun(self: Any, *args: Any, begin: Callable[..., None] = begin, **named: Any) -> None:
            made.append(weakref.ref(self))
            begin(self, *args, **named)

        monkeypatch.setattr(kind, "__init__", begun)
    return made


@contextlib.contextmanager
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


async def finished(rig: Rig, prompt: str) -> None:
    await rig.worker.generate(prompt=prompt, max_tokens=4)


async def heard_by_a_sink(rig: Rig, prompt: str) -> None:
    run = rig.worker.submit(GenerateRequest(prompt=prompt, max_tokens=4), Reader())
    await run.released()


async def refused(rig: Rig, prompt: str) -> None:
    await rig.worker.generate(prompt=prompt, temperature=9)


async def of_no_form(rig: Rig, prompt: str) -> None:
    await rig.worker.generate(prompt=prompt, colour="red")  # type: ignore[call-arg]


async def too_long(rig: Rig, prompt: str) -> None:
    await rig.worker.generate(prompt=prompt, max_tokens=4090)


async def too_long_for_a_sink(rig: Rig, prompt: str) -> None:
    run = rig.worker.submit(GenerateRequest(prompt=prompt, max_tokens=4090), Reader())
    await run.released()


async def not_tokenized(rig: Rig, prompt: str) -> None:
    rig.tokenizer.broken = True
    await rig.worker.generate(prompt=prompt)


async def failed_in_the_engine(rig: Rig, prompt: str) -> None:
    rig.engine.script = Script(fault=RuntimeError("it broke"))
    await rig.worker.generate(prompt=prompt)


async def too_many(rig: Rig, prompt: str) -> None:
    async with rig.worker.stream(prompt="x") as running:
        await anext(running)
        await rig.worker.generate(prompt=prompt)


async def too_slow(rig: Rig, prompt: str) -> None:
    await rig.worker.generate(prompt=prompt, timeout_s=0.05)


async def closed_by_its_reader(rig: Rig, prompt: str) -> None:
    async with rig.worker.stream(prompt=prompt) as stream:
        async for event in stream:
            if isinstance(event, Delta):
                break


async def never_read(rig: Rig, prompt: str) -> None:
    rig.worker.stream(prompt=prompt)


async def cancelled(work: Awaitable[Any], begun: Callable[[], bool]) -> None:
    task = asyncio.ensure_future(work)
    await until(begun)
    task.cancel()
    await asyncio.wait({task})


async def cancelled_while_it_ran(rig: Rig, prompt: str) -> None:
    await cancelled(rig.worker.generate(prompt=prompt), lambda: rig.worker.stats.completion_tokens > 0)


async def cancelled_while_it_was_prepared(rig: Rig, prompt: str) -> None:
    rig.tokenizer.gate.clear()
    rig.tokenizer.begun.clear()
    try:
        await cancelled(rig.worker.generate(prompt=prompt), rig.tokenizer.begun.is_set)
    finally:
        rig.tokenizer.gate.set()


async def started_again(rig: Rig, prompt: str) -> None:
    rig.engine.script = Script(hang_at_step=0)
    answer = asyncio.ensure_future(rig.worker.generate(prompt=prompt, max_tokens=4))
    await until(lambda: rig.engine.health().active == 1)
    rig.engine.die()
    await answer


async def embedded(rig: Rig, prompt: str) -> None:
    await rig.worker.embed([prompt])


async def not_embedded(rig: Rig, prompt: str) -> None:
    await rig.worker.embed([prompt, ""])


async def embedding_not_tokenized(rig: Rig, prompt: str) -> None:
    rig.tokenizer.broken = True
    await rig.worker.embed([prompt])


async def embedding_cancelled(rig: Rig, prompt: str) -> None:
    rig.tokenizer.gate.clear()
    rig.tokenizer.begun.clear()
    try:
        await cancelled(rig.worker.embed([prompt]), rig.tokenizer.begun.is_set)
    finally:
        rig.tokenizer.gate.set()


async def counted(rig: Rig, prompt: str) -> None:
    await rig.worker.tokenize(prompt)


async def not_counted(rig: Rig, prompt: str) -> None:
    rig.tokenizer.broken = True
    await rig.worker.tokenize(prompt)


ENDINGS = [
    finished, heard_by_a_sink, refused, of_no_form, too_long, too_long_for_a_sink, not_tokenized, failed_in_the_engine,
    too_many, too_slow, closed_by_its_reader, never_read, cancelled_while_it_ran, cancelled_while_it_was_prepared,
    started_again, embedded, not_embedded, embedding_not_tokenized, embedding_cancelled, counted, not_counted,
]  # fmt: skip


@pytest.mark.parametrize("ending", ENDINGS)
async def test_nothing_of_it_is_left(
    rig: Rig, requests: list[weakref.ref[Any]], ending: Callable[[Rig, str], Awaitable[None]]
) -> None:
    prompts: list[weakref.ref[Any]] = []

    async def ask() -> None:
        prompt = Text("Once upon a time ")
        prompts.append(weakref.ref(prompt))
        requests.append(prompts[0])
        with contextlib.suppress(DrivetrainError):
            await ending(rig, prompt)

    await rig.worker.generate(prompt="x", max_tokens=2)  # what is made once is made
    with no_collector():
        await asyncio.create_task(ask())
        await until(lambda: all(made() is None for made in requests))

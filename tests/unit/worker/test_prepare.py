"""Texts are prepared on threads, and whatever goes wrong there comes back typed."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from drivetrain.core.engine import ModelSpec, WeightsFormat
from drivetrain.core.errors import EngineFailed, InvalidRequest, NotReady, Overloaded
from drivetrain.core.messages import ImagePart
from drivetrain.core.status import State
from drivetrain.engines.fake import FakeEngine, Script
from drivetrain.text.byte_tokenizer import ByteTokenizer
from drivetrain.worker.prepare import Preparer
from drivetrain.worker.settings import Settings
from drivetrain.worker.texts_run import TEXTS_A_JOB
from drivetrain.worker.worker import EngineWorker

SPEC = ModelSpec(name="fake", path=Path(), format=WeightsFormat.NONE)
ON_LOOP = threading.get_ident()


class Watched(ByteTokenizer):
    """Notes where it was asked. `slow` keeps the processor busy, as a template can, and `hold` waits."""

    waits = False

    def __init__(self) -> None:
        self.asked_on_loop: list[bool] = []
        self.hold = threading.Event()
        self.hold.set()
        self.broken: BaseException | None = None

    def encode(self, prompt: Any) -> list[int]:
        self.asked_on_loop.append(threading.get_ident() == ON_LOOP)
        if "slow" in prompt.text:
            until = time.thread_time() + 0.01
            while time.thread_time() < until:
                pass
        if "hold" in prompt.text:
            self.hold.wait(30)
        if self.broken is not None:
            raise self.broken
        return super().encode(prompt)


@pytest.fixture
def tokenizer() -> Watched:
    return Watched()


@pytest.fixture
async def worker(tokenizer: Watched) -> AsyncIterator[EngineWorker]:
    engine = FakeEngine(Script(text="ab", context_length=10_000), tokenizer=tokenizer)
    async with EngineWorker(engine, SPEC, Settings()) as made:
        tokenizer.asked_on_loop.clear()
        yield made


async def test_no_text_is_prepared_on_the_loop(worker: EngineWorker, tokenizer: Watched) -> None:
    for text in ("short", "slow", "<|im_end|>"):
        await worker.generate(prompt=text)
    await worker.generate(messages=[{"role": "user", "content": "short"}])
    assert tokenizer.asked_on_loop == [False] * 4


@pytest.mark.parametrize("broken", [ValueError("no"), BaseException("a panic of another language")])
async def test_what_a_tokenizer_raises_is_typed(
    worker: EngineWorker, tokenizer: Watched, broken: BaseException
) -> None:
    await worker.generate(prompt="short")
    tokenizer.broken = broken
    with pytest.raises(EngineFailed, match="the tokenizer failed on this text"):
        await worker.generate(prompt="short")
    tokenizer.broken = None
    await worker.generate(prompt="short")


async def test_one_that_wants_to_end_the_program_on_a_thread_ends_its_request_only(
    worker: EngineWorker, tokenizer: Watched
) -> None:
    tokenizer.broken = SystemExit(3)
    with pytest.raises(EngineFailed, match="the tokenizer failed on this text"):
        await worker.generate(prompt="short")
    tokenizer.broken = None
    assert tokenizer.asked_on_loop == [False]
    await worker.generate(prompt="short")


@pytest.mark.slow
async def test_a_request_comes_between_the_texts_of_long_lists(worker: EngineWorker, tokenizer: Watched) -> None:
    lists = [asyncio.create_task(worker.embed(["slow"] * 400)) for _ in range(2)]
    while len(tokenizer.asked_on_loop) < 4:
        await asyncio.sleep(0.001)
    await worker.generate(prompt="x" * 2000, max_tokens=1)
    assert len(tokenizer.asked_on_loop) < 200
    assert not any(one.done() for one in lists)
    assert [len((await one).vectors) for one in lists] == [400, 400]


async def test_a_list_that_is_given_up_is_not_tokenized_to_its_end(worker: EngineWorker, tokenizer: Watched) -> None:
    given_up = asyncio.create_task(worker.embed(["slow"] * 400))
    while not tokenizer.asked_on_loop:
        await asyncio.sleep(0.001)
    given_up.cancel()
    await asyncio.wait([given_up])
    await asyncio.sleep(1)
    assert len(tokenizer.asked_on_loop) <= TEXTS_A_JOB


async def test_what_is_wrong_far_down_a_list_is_named(worker: EngineWorker) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await worker.embed([*[[65]] * 70, [10**9], [65]])
    assert caught.value.param == "input[70]"


@pytest.mark.parametrize(("waits", "at_once", "threads"), [(False, 40, 2), (True, 1, 2), (True, 5, 5), (True, 40, 16)])
async def test_as_many_threads_as_there_is_to_wait_for(
    tokenizer: Watched, monkeypatch: pytest.MonkeyPatch, waits: bool, at_once: int, threads: int
) -> None:
    monkeypatch.setattr(Watched, "waits", waits)
    engine = FakeEngine(Script(text="ab", max_concurrency=at_once), tokenizer=tokenizer)
    async with EngineWorker(engine, SPEC, Settings()) as worker:
        assert worker._texts is not None
        assert worker._texts.prompts._max_workers == threads
        media = worker._media
    assert media is not None
    with pytest.raises(NotReady):
        await media.load([(ImagePart(url="https://a.example/x"), "here")])


class ReadWhole(ByteTokenizer):
    """Notes in which thread the vocabulary was read, and what the worker was then."""

    def __init__(self) -> None:
        self.readers: set[str] = set()
        self.states: set[State] = set()
        self.worker: EngineWorker | None = None

    def token_bytes(self, token_id: int) -> bytes:
        assert self.worker is not None
        self.readers.add(threading.current_thread().name)
        self.states.add(self.worker.state)
        return super().token_bytes(token_id)


@pytest.fixture(params=[True, False])
def cold_or_warm(request: pytest.FixtureRequest) -> tuple[EngineWorker, ReadWhole, bool]:
    tokenizer = ReadWhole()
    made = EngineWorker(FakeEngine(Script(text="yes"), tokenizer=tokenizer), SPEC, Settings(), warm=request.param)
    tokenizer.worker = made
    return made, tokenizer, request.param


async def test_a_warm_worker_has_read_the_vocabulary_before_it_is_ready(
    cold_or_warm: tuple[EngineWorker, ReadWhole, bool],
) -> None:
    worker, tokenizer, warm = cold_or_warm
    async with worker:
        assert tokenizer.states == ({State.LOADING} if warm else set())
        result = await worker.generate(prompt="x", constraint={"choice": ["yes"]})
        assert result.text == "yes"
        assert warm or State.READY in tokenizer.states
        assert "drivetrain-grammar_0" in tokenizer.readers


@pytest.mark.parametrize("cold_or_warm", [True], indirect=True)
async def test_without_what_constraints_need_a_worker_serves_the_others(
    cold_or_warm: tuple[EngineWorker, ReadWhole, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    worker, _, _ = cold_or_warm
    async with worker:
        assert (await worker.generate(prompt="x", temperature=0)).text == "yes"
        with pytest.raises(Overloaded, match="cannot be started"):
            await worker.generate(prompt="x", constraint={"choice": ["yes"]})


@pytest.mark.parametrize("cold_or_warm", [True], indirect=True)
async def test_a_worker_that_is_stopped_while_it_warms_up(
    cold_or_warm: tuple[EngineWorker, ReadWhole, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def warm(self: Preparer) -> None:
        begun.set()
        await go_on.wait()

    monkeypatch.setattr(Preparer, "warm", warm)
    worker, _, _ = cold_or_warm
    starting = asyncio.create_task(worker.start())
    await begun.wait()
    await worker.stop()
    go_on.set()
    with pytest.raises(NotReady):
        await starting
    assert worker.state is State.STOPPED

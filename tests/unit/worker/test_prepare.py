"""Short texts are prepared on the event loop, as long as that is quick; all others on a thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from drivetrain.core.engine import ModelSpec, WeightsFormat
from drivetrain.core.errors import Cancelled, EngineFailed, InvalidRequest, NotReady
from drivetrain.core.messages import ImagePart
from drivetrain.engines.fake import FakeEngine, Script
from drivetrain.text.byte_tokenizer import ByteTokenizer
from drivetrain.worker import prepare
from drivetrain.worker.embedding import TEXTS_A_JOB
from drivetrain.worker.settings import Settings
from drivetrain.worker.worker import Worker

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


@pytest.fixture(autouse=True)
def lenient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine even a short text may take a while."""
    monkeypatch.setattr(prepare, "QUICK_S", 0.005)


@pytest.fixture
def tokenizer() -> Watched:
    return Watched()


@pytest.fixture
async def worker(tokenizer: Watched) -> AsyncIterator[Worker]:
    engine = FakeEngine(Script(text="ab", context_length=10_000), tokenizer=tokenizer)
    async with Worker(engine, SPEC, Settings()) as made:
        tokenizer.asked_on_loop.clear()
        yield made


async def test_the_first_is_prepared_on_a_thread_and_quick_ones_after_it_on_the_loop(
    worker: Worker, tokenizer: Watched
) -> None:
    for _ in range(3):
        await worker.generate(prompt="short")
    await worker.generate(messages=[{"role": "user", "content": "short"}])
    assert tokenizer.asked_on_loop == [False, True, True, True]


async def test_a_slow_one_sends_the_next_to_a_thread(worker: Worker, tokenizer: Watched) -> None:
    for text in ("short", "slow", "short", "short"):
        await worker.generate(prompt=text)
    assert tokenizer.asked_on_loop == [False, True, False, True]


TEXT = {"type": "text", "text": ""}


@pytest.mark.parametrize(
    "request_",
    [
        {"prompt": "x" * (prepare.SHORT_CHARS + 1)},
        {"prompt_token_ids": [65] * (prepare.SHORT_CHARS + 1)},
        {"messages": [{"role": "user", "content": "x" * 600}] * 2},
        {"messages": [{"role": "user", "content": ""}] * 100},
        {"messages": [{"role": "user", "content": [TEXT] * 100}]},
        {"prompt": "short", "stop": ["y" * 900]},
        {"prompt": "short", "stop_sequences": [[66] * 100]},
        {"prompt": "short", "stop_token_ids": [66]},
        {"messages": [{"role": "user", "content": "<|im_end|>"}]},
    ],
    ids=["prompt", "ids", "texts", "messages", "parts", "stops", "stop sequences", "stop ids", "special"],
)
async def test_what_takes_long_to_walk_through_goes_to_a_thread(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, request_: dict[str, Any]
) -> None:
    preparer = worker._preparer
    assert preparer is not None
    prepared_on_loop: list[bool] = []
    original = preparer._prepare

    def watched(*given: Any) -> Any:
        prepared_on_loop.append(threading.get_ident() == ON_LOOP)
        return original(*given)

    monkeypatch.setattr(preparer, "_prepare", watched)
    await worker.generate(prompt="short")
    await worker.generate(prompt="short", stop=["###"])
    await worker.generate(**request_)
    assert prepared_on_loop == [False, True, False]


async def test_one_that_waits_for_another_process_is_never_asked_on_the_loop(
    worker: Worker, tokenizer: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Watched, "waits", True)
    for _ in range(3):
        await worker.generate(prompt="short")
    assert tokenizer.asked_on_loop == [False] * 3


async def test_while_a_thread_is_at_it_the_loop_is_not(worker: Worker, tokenizer: Watched) -> None:
    """Also of a request that has ended meanwhile: what it began goes on."""
    await worker.generate(prompt="short")
    tokenizer.hold.clear()
    stream = worker.stream(prompt="hold" + "x" * prepare.SHORT_CHARS)
    reading = asyncio.ensure_future(anext(stream))
    while len(tokenizer.asked_on_loop) < 2:
        await asyncio.sleep(0.001)
    await stream.aclose()
    with pytest.raises(Cancelled):
        await reading
    await worker.generate(prompt="short")
    tokenizer.hold.set()
    while worker._preparer is None or worker._preparer._on_threads:
        await asyncio.sleep(0.001)
    await worker.generate(prompt="short")
    assert tokenizer.asked_on_loop == [False, False, False, True]


@pytest.mark.parametrize("broken", [ValueError("no"), BaseException("a panic of another language")])
async def test_what_a_tokenizer_raises_on_the_loop_is_typed(
    worker: Worker, tokenizer: Watched, broken: BaseException
) -> None:
    await worker.generate(prompt="short")
    tokenizer.broken = broken
    with pytest.raises(EngineFailed, match="the tokenizer failed on this text"):
        await worker.generate(prompt="short")
    tokenizer.broken = None
    await worker.generate(prompt="short")
    assert tokenizer.asked_on_loop[1]


async def test_one_that_wants_to_end_the_program_on_a_thread_ends_its_request_only(
    worker: Worker, tokenizer: Watched
) -> None:
    tokenizer.broken = SystemExit(3)
    with pytest.raises(EngineFailed, match="the tokenizer failed on this text"):
        await worker.generate(prompt="short")
    tokenizer.broken = None
    assert tokenizer.asked_on_loop == [False]
    await worker.generate(prompt="short")


async def test_an_interrupt_of_the_program_on_the_loop_is_no_failure_of_the_text(
    worker: Worker, tokenizer: Watched
) -> None:
    await worker.generate(prompt="short")
    tokenizer.broken = SystemExit()
    stream = worker.stream(prompt="short")
    coroutine = anext(stream)
    with pytest.raises(SystemExit):
        coroutine.__await__().__next__()
    tokenizer.broken = None
    assert worker.status.running == 0
    with pytest.raises(Cancelled, match="the program is ending"):
        await anext(stream)


async def test_a_request_comes_between_the_texts_of_long_lists(worker: Worker, tokenizer: Watched) -> None:
    lists = [asyncio.create_task(worker.embed(["slow"] * 400)) for _ in range(2)]
    while len(tokenizer.asked_on_loop) < 4:
        await asyncio.sleep(0.001)
    await worker.generate(prompt="x" * 2000, max_tokens=1)
    assert len(tokenizer.asked_on_loop) < 200
    assert not any(one.done() for one in lists)
    assert [len((await one).vectors) for one in lists] == [400, 400]


async def test_a_list_that_is_given_up_is_not_tokenized_to_its_end(worker: Worker, tokenizer: Watched) -> None:
    given_up = asyncio.create_task(worker.embed(["slow"] * 400))
    while not tokenizer.asked_on_loop:
        await asyncio.sleep(0.001)
    given_up.cancel()
    await asyncio.wait([given_up])
    await asyncio.sleep(1)
    assert len(tokenizer.asked_on_loop) <= TEXTS_A_JOB


async def test_what_is_wrong_far_down_a_list_is_named(worker: Worker) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await worker.embed([*[[65]] * 70, [10**9], [65]])
    assert caught.value.param == "input[70]"


@pytest.mark.parametrize(("waits", "at_once", "threads"), [(False, 40, 2), (True, 1, 2), (True, 5, 5), (True, 40, 16)])
async def test_as_many_threads_as_there_is_to_wait_for(
    tokenizer: Watched, monkeypatch: pytest.MonkeyPatch, waits: bool, at_once: int, threads: int
) -> None:
    monkeypatch.setattr(Watched, "waits", waits)
    engine = FakeEngine(Script(text="ab", max_concurrency=at_once), tokenizer=tokenizer)
    async with Worker(engine, SPEC, Settings()) as worker:
        assert worker._executor is not None
        assert worker._executor._max_workers == threads
        media = worker._media
    assert media is not None
    with pytest.raises(NotReady):
        await media.load(ImagePart(url="https://a.example/x"), "here")

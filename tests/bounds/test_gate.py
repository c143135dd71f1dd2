"""The gate: nobody's first token waits for those who want their texts split, and those wait in a bounded line."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from drivetrain.core.engine import ModelSpec, WeightsFormat
from drivetrain.core.errors import Cancelled, DeadlineExceeded, InvalidRequest, NotReady, Overloaded
from drivetrain.engines.fake import FakeEngine, Script
from drivetrain.text.byte_tokenizer import ByteTokenizer
from drivetrain.worker.settings import Settings
from drivetrain.worker.text_threads import LONG_CHARS
from drivetrain.worker.worker import EngineWorker

SPEC = ModelSpec(name="fake", path=Path(), format=WeightsFormat.NONE)
SOON_S = 60
"""What hangs, hangs for ever: this is no measure of anything."""

SHORT, LONG = "hold", "hold" + "x" * LONG_CHARS


class Held(ByteTokenizer):
    """What says «hold» takes until `gate` is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.begun: list[str] = []
        self.bos: list[bool] = []

    def encode(self, prompt: Any) -> list[int]:
        self.bos.append(prompt.add_bos)
        self._hold(prompt.text)
        return super().encode(prompt)

    def decode(self, ids: Any, *, skip_special: bool = True) -> str:
        text = super().decode(ids, skip_special=skip_special)
        self._hold(text)
        return text

    def _hold(self, text: str) -> None:
        self.begun.append(text)
        if "hold" in text:
            assert self.gate.wait(SOON_S * 2)


@pytest.fixture
def tokenizer() -> Held:
    return Held()


@contextlib.asynccontextmanager
async def opened(tokenizer: Held, **settings: Any) -> AsyncIterator[EngineWorker]:
    async with EngineWorker(
        FakeEngine(Script(context_length=100_000), tokenizer=tokenizer), SPEC, Settings(**settings)
    ) as worker:
        try:
            yield worker
        finally:
            tokenizer.gate.set()


@pytest.fixture
async def worker(tokenizer: Held) -> AsyncIterator[EngineWorker]:
    async with opened(tokenizer) as made:
        yield made


Attack = Callable[[EngineWorker, str], Any]

ATTACKS: dict[str, Attack] = {
    "tokenize": lambda worker, text: worker.tokenize(text),
    "tokenize a chat": lambda worker, text: worker.tokenize(messages=[{"role": "user", "content": text}]),
    "detokenize": lambda worker, text: worker.detokenize(list(text.encode())),
    "embed": lambda worker, text: worker.embed([text]),
    "rerank": lambda worker, text: worker.rerank("query", [text]),
}


async def begun(tokenizer: Held, number: int = 1) -> None:
    while len(tokenizer.begun) < number:
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("text", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
async def test_a_chat_does_not_wait_for_twenty_that_hang(
    worker: EngineWorker, tokenizer: Held, attack: Attack, text: str
) -> None:
    """Twenty `/tokenize` of 0.3 MB kept a first token waiting for 7.5 s, six of 3 MB for 24 s."""
    hanging = [asyncio.create_task(attack(worker, text)) for _ in range(20)]
    async with asyncio.timeout(SOON_S):
        await begun(tokenizer)
        for prompt in ("Hi", "x" * 2000):
            stream = worker.stream(messages=[{"role": "user", "content": prompt}], max_tokens=4)
            assert await anext(stream)
            await stream.aclose()
        await worker.generate(prompt="x" * 2000, max_tokens=4)
        assert not any(task.done() for task in hanging)
        tokenizer.gate.set()
        assert len(await asyncio.gather(*hanging)) == 20


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
async def test_short_ones_do_not_wait_for_long_ones(worker: EngineWorker, tokenizer: Held, attack: Attack) -> None:
    hanging = [asyncio.create_task(attack(worker, LONG)) for _ in range(5)]
    async with asyncio.timeout(SOON_S):
        await begun(tokenizer)
        for short in ATTACKS.values():
            assert await short(worker, "short")
    tokenizer.gate.set()
    await asyncio.gather(*hanging)


async def test_a_chat_does_not_wait_for_long_prompts(tokenizer: Held) -> None:
    async with opened(tokenizer) as worker:
        hanging = [asyncio.create_task(worker.generate(prompt=LONG)) for _ in range(5)]
        async with asyncio.timeout(SOON_S):
            await begun(tokenizer)
            await worker.generate(prompt="short", max_tokens=4)
        tokenizer.gate.set()
        await asyncio.gather(*hanging, return_exceptions=True)


async def test_a_chat_does_not_wait_for_a_template_that_renders_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Held, "chat_template", "{{ messages[0].content }}")
    async with opened(Held()) as worker:
        assert worker._model is not None
        template = worker._model.tokenizing._chats._family.template  # type: ignore[attr-defined]
        with template._lock:
            counting = asyncio.create_task(worker.tokenize(messages=[{"role": "user", "content": "Hi"}]))
            async with asyncio.timeout(SOON_S):
                await worker.generate(messages=[{"role": "user", "content": "Hi"}], max_tokens=4)
            assert not counting.done()
        assert await counting


@pytest.mark.parametrize("attack", [a for name, a in ATTACKS.items() if name not in {"embed", "rerank"}])
async def test_the_line_is_bounded(tokenizer: Held, attack: Attack) -> None:
    async with opened(tokenizer, max_waiting=3) as worker:
        hanging = [asyncio.create_task(attack(worker, SHORT)) for _ in range(4)]
        async with asyncio.timeout(SOON_S):
            await begun(tokenizer)
            with pytest.raises(Overloaded, match="3 texts are waiting") as caught:
                await attack(worker, SHORT)
            assert caught.value.retry_after_s > 0
            tokenizer.gate.set()
            await asyncio.gather(*hanging)
            await attack(worker, SHORT)
        assert worker.stats.endings == {"finished": 5, "overloaded": 1}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
async def test_who_left_is_not_worked_for(worker: EngineWorker, tokenizer: Held, attack: Attack) -> None:
    hanging = [asyncio.create_task(attack(worker, SHORT)) for _ in range(10)]
    async with asyncio.timeout(SOON_S):
        await begun(tokenizer)
        for task in hanging[1:]:
            task.cancel()
        await asyncio.gather(*hanging[1:], return_exceptions=True)
        tokenizer.gate.set()
        await hanging[0]
        await attack(worker, "after")
    assert sum("hold" in text for text in tokenizer.begun) == 1
    assert worker.stats.endings == {"finished": 2, Cancelled.code: 9}


@pytest.mark.parametrize("attack", [a for name, a in ATTACKS.items() if name != "embed"])
async def test_it_takes_no_longer_than_any_request_may(tokenizer: Held, attack: Attack) -> None:
    async with opened(tokenizer, timeout_s=0.2) as worker:
        hanging = [asyncio.create_task(attack(worker, SHORT)) for _ in range(3)]
        for result in await asyncio.gather(*hanging, return_exceptions=True):
            assert isinstance(result, DeadlineExceeded)
            assert result.request_id
        tokenizer.gate.set()
        assert worker.stats.endings == {DeadlineExceeded.code: 3}


async def test_those_that_wait_when_the_worker_stops_are_told(tokenizer: Held) -> None:
    async with opened(tokenizer) as worker:
        hanging = [asyncio.create_task(worker.tokenize(SHORT)) for _ in range(3)]
        await begun(tokenizer)
        stopping = asyncio.create_task(worker.stop(0))
        waiting = [hanging[1], hanging[2]]
        async with asyncio.timeout(SOON_S):
            results = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(isinstance(result, NotReady) for result in results)
            tokenizer.gate.set()
            await hanging[0]
            await stopping


async def test_each_has_a_line_in_the_log(worker: EngineWorker, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "drivetrain.requests"):
        await worker.tokenize("secret text")
        await worker.detokenize([65, 66])
        with pytest.raises(InvalidRequest):
            await worker.detokenize([10**9])
    lines = [record.getMessage() for record in caplog.records]
    for line, said in zip(lines, ("finished 12 tokens", "finished 2 tokens", "invalid_request 0 tokens"), strict=True):
        assert said in line
        assert "secret" not in line


@pytest.mark.parametrize(("special", "expected"), [(None, True), (True, True), (False, False)])
async def test_whether_special_tokens_are_added(
    worker: EngineWorker, tokenizer: Held, special: bool | None, expected: bool
) -> None:
    await worker.tokenize("text", add_special_tokens=special)
    assert tokenizer.bos == [expected]
    chat = [{"role": "user", "content": "text"}]
    await worker.generate(messages=chat, max_tokens=1)
    await worker.tokenize(messages=chat, add_special_tokens=special)
    as_answered, asked = tokenizer.bos[1:]
    assert asked == (as_answered if special is None else special)


async def test_bad_ids_are_judged_off_the_loop_and_bounded_in_number(tokenizer: Held) -> None:
    async with opened(tokenizer, max_prompt_chars=30_000) as worker:
        for bad in ([65] * 20_000 + [-1], [65] * 20_000 + ["x"], [10**9], [True]):
            with pytest.raises(InvalidRequest, match="ids must be a list of integers"):
                await worker.detokenize(bad)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="limit is 30000"):
            await worker.detokenize([65] * 30_001)
        assert await worker.detokenize([]) == ""

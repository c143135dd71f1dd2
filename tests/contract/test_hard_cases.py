"""Defects that were found once, on every engine: each stays a case."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from contract.rigs import LONG, PROMPT, Rig
from contract.test_endings import ENDLESS, read_some, until_idle, works
from drivetrain.core.errors import (
    Cancelled,
    ContextOverflow,
    DeadlineExceeded,
    EngineFailed,
    InvalidRequest,
    NotReady,
)
from drivetrain.core.events import Delta, Finished
from drivetrain.worker.worker import EngineWorker
from probe import engine_of


@pytest.mark.parametrize(
    "text",
    [
        "\ue000drivetrain:literal\ue001 <|im_end|>", "\ue000\ue001</s>\ue000", "</s>" * 50, "<|im_end|>\U000f0000",
        "a\x00b</s>", "\u2028</s>\ufeff", "",
    ],
)  # fmt: skip
async def test_no_message_can_confuse_the_encoding(worker: EngineWorker, text: str) -> None:
    async with asyncio.timeout(20):
        result = await worker.generate(messages=[{"role": "user", "content": text}], max_tokens=2, ignore_eos=True)
    assert result.usage.completion_tokens == 2


class Panic(BaseException):
    """As a native library raises: no `Exception`."""


async def test_a_panic_in_the_engine_is_one_typed_ending(rig: Rig, worker: EngineWorker) -> None:
    if rig.name == "fake":
        return  # its script is Python of our own; the boundary is that of engines with a library under them
    with rig.fault(worker, 2, Panic("native code gave up")):
        async with asyncio.timeout(10):
            with pytest.raises(EngineFailed):
                await worker.generate(**ENDLESS)
    await until_idle(rig, worker)
    await works(worker)


async def test_an_unreadable_device_hides_no_ending(worker: EngineWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise RuntimeError("device lost")

    monkeypatch.setattr(engine_of(worker), "memory", broken)
    events = [event async for event in worker.stream(**{**ENDLESS, "max_tokens": 3})]
    assert isinstance(events[-1], Finished)
    stream = worker.stream(**ENDLESS)
    await read_some(stream, 2)
    await stream.aclose()
    with pytest.raises(Cancelled):
        await read_some(stream, LONG)


async def test_a_partial_keeps_what_waited_for_its_interval(rig: Rig) -> None:
    async with rig.open(stream_interval=50) as worker:
        events = []
        with rig.fault(worker, 30, RuntimeError("broken")), pytest.raises(EngineFailed) as caught:
            async for event in worker.stream(**ENDLESS):
                events.append(event)
        partial = caught.value.partial
        assert partial is not None
        assert partial.usage.completion_tokens >= 30
        assert len(partial.choices[0].token_ids) >= partial.usage.completion_tokens - 4  # a character may be unfinished
        assert partial.choices[0].text == "".join(e.text for e in events if isinstance(e, Delta))


async def test_one_answer_has_one_reader(worker: EngineWorker) -> None:
    stream = worker.stream(**ENDLESS)
    await read_some(stream, 2)
    first = asyncio.create_task(read_some(stream, LONG * 3))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError):
        await stream.__anext__()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await stream.aclose()


async def test_embeddings_keep_their_deadline_and_free_the_engine(rig: Rig, worker: EngineWorker) -> None:
    if not worker.capabilities.embeddings:
        return
    limit = worker.capabilities.context_length
    many = [[65] * min(limit, 200)] * 1500
    ended = sum(worker.status.endings.values())
    started = asyncio.get_running_loop().time()
    slow = rig.name not in {"fake", "remote"}
    if slow:
        with pytest.raises(DeadlineExceeded):
            await worker.embed(many, timeout_s=0.1)
        assert asyncio.get_running_loop().time() - started < 20
    task = asyncio.create_task(worker.embed(many))
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await until_idle(rig, worker)
    await works(worker)
    assert sum(worker.status.endings.values()) - ended == (3 if slow else 2)
    for bad in (0, -1, float("nan"), "x"):
        with pytest.raises(InvalidRequest):
            await worker.embed("x", timeout_s=bad)  # type: ignore[arg-type]  # that is the test
    with pytest.raises(InvalidRequest):
        await worker.embed(["x"] * (worker.capabilities.limits.max_embed_inputs + 1))
    with pytest.raises(InvalidRequest):
        await worker.embed(["\ud800"])


async def test_counting_is_typed_too(rig: Rig, worker: EngineWorker) -> None:
    for bad in (123, "\ud800", b"x"):
        with pytest.raises(InvalidRequest):
            await worker.count_tokens(bad)  # type: ignore[arg-type]  # that is the test
    with pytest.raises(InvalidRequest):
        await worker.detokenize([-1])
    ids = await worker.tokenize("héllo 🌍")
    assert "héllo 🌍" in await worker.detokenize(ids)
    async with rig.open() as other:
        await other.stop()
        with pytest.raises(NotReady):
            await other.count_tokens("x")


async def test_a_stop_that_was_cancelled_goes_on_and_a_second_waits(rig: Rig) -> None:
    async with rig.open() as worker:
        stream = worker.stream(**ENDLESS)
        await read_some(stream, 2)
        first = asyncio.create_task(worker.stop(5))
        await asyncio.sleep(0.01)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await stream.aclose()
        await worker.stop()
        assert worker.status.running == 0
        assert not worker.status.engine_alive


async def test_sizes_are_judged_before_contents(worker: EngineWorker) -> None:
    started = time.process_time()
    huge: dict[str, Any] = {
        "logit_bias": dict.fromkeys(range(500_000), 1.0), "stop_sequences": [tuple(range(1_000_000))],
        "suppress_tokens": [1] * 1_000_000, "stop": ["x"] * 1_000_000, "bad_words_ids": [[1]] * 1_000_000,
        "sequence_bias": [[[1] * 1_000_000, 1.0]],
    }  # fmt: skip
    for name, value in huge.items():
        with pytest.raises(InvalidRequest) as caught:
            await worker.generate(prompt=PROMPT, **{name: value})
        assert caught.value.param == name
    with pytest.raises((ContextOverflow, InvalidRequest)):
        await worker.generate(prompt_token_ids=[1] * 3_000_000, max_tokens=1)
    assert time.process_time() - started < 5


@pytest.mark.parametrize("temperature", [1e-38, 1e-300, 1e-6])
async def test_the_smallest_temperatures_are_greedy(worker: EngineWorker, temperature: float) -> None:
    base: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 8, "ignore_eos": True}
    greedy = await worker.generate(**base, temperature=0)
    assert (await worker.generate(**base, temperature=temperature)).text == greedy.text


async def test_an_echo_with_special_tokens_has_true_offsets(worker: EngineWorker) -> None:
    if "prompt_logprobs" not in worker.capabilities.parameters:
        return
    prompt = "héllo <|im_start|>世界 x</s> y"
    choice = (
        await worker.generate(
            prompt=prompt, echo=True, logprobs=0, prompt_logprobs=0, max_tokens=4, ignore_eos=True, temperature=0
        )
    ).choices[0]
    assert choice.logprobs is not None
    assert choice.text.startswith(prompt)
    assert b"".join(e.bytes for e in choice.logprobs).decode("utf-8", "replace").startswith(prompt)
    named = next(e for e in choice.logprobs if e.bytes == b"<|im_start|>")
    assert named.text_offset == prompt.index("<|im_start|>")

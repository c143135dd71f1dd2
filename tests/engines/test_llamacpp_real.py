"""The llamacpp engine on the real small model: what it says, its tokenizer, its cancels, its process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import drivetrain
from drivetrain.core.engine import ModelSpec, WeightsFormat
from drivetrain.core.errors import DrivetrainError, EngineFailed
from drivetrain.core.events import Delta
from drivetrain.core.prompt import Prompt, Segment
from drivetrain.engines.llamacpp.child.host import CPU_BATCH
from drivetrain.engines.llamacpp.engine import LlamaCppEngine
from drivetrain.worker.settings import Settings
from drivetrain.worker.worker import EngineWorker
from probe import engine_of, pid_of, process_of

pytestmark = pytest.mark.slow

EMOJI = "Repeat: 🌍🎉你好 🌍🎉你好 🌍🎉你好 🌍🎉你好 🌍🎉你好"
STORY = "Once upon a time there was a small engine that kept its word."
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}

TEXTS = [
    "", " ", "a", " a", "a ", "Hello world", "Hello  world   !", "\n", "\n\n\n", "\t\tif x:\n\t\t\treturn 1\n",
    "tab\tend\t",
    "don't can't I'll we've", "1234567890", "3.14159, 2,718", "x=1;y=2", "https://example.org/a?b=c&d=%20", "ALL CAPS",
    "naïve café", "Ünïcödé", "straße", "Ελληνικά", "Привет, мир", "שלום", "مرحبا بالعالم", "नमस्ते", "สวัสดี",
    "你好世界", "こんにちは世界", "한국어 텍스트", "🌍🎉你好", "👨‍👩‍👧‍👦 family",
    "🏳️‍🌈", "e\u0301 vs é",
    "zero\u200bwidth", "nb\u00a0space",
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_start|>user\nHi<|im_end|>\n", "a<|im_end|>b", " <|im_end|> ",
    "<|im_start", "|im_end|>", "< |im_end|>", "<repo_name>x<file_sep>y", "<|im_end|><|im_end|>", "\ufeffbom",
    "line\r\nbreaks\rmixed\n", "\x00\x01\x7f", "mixed 中文 and English 和 emoji 😀!",
]  # fmt: skip


def path_of(name: str) -> Path:
    from drivetrain.store.store import Store

    return Store().pull(name).path


def worker_on(path: Path, settings: dict[str, Any] | None = None, **options: Any) -> EngineWorker:
    spec = ModelSpec(name="smollm2", path=path, format=WeightsFormat.GGUF, options=options)
    return EngineWorker(LlamaCppEngine(), spec, Settings(**(settings or {})))


@pytest.fixture(scope="module")
async def worker(smollm2: str) -> AsyncIterator[EngineWorker]:
    made = worker_on(path_of(smollm2))
    await made.start()
    yield made
    await made.stop()


@pytest.fixture(scope="module")
async def reference(smollm2: str) -> AsyncIterator[drivetrain.Worker]:
    """The transformers engine on the converted copy of the same file."""
    async with drivetrain.Worker.open(smollm2, "transformers") as made:
        yield made


async def test_it_knows_the_capital_of_france(worker: EngineWorker) -> None:
    """Without the template's own system line, with which the 8-bit arithmetic of the kernels tips over to French."""
    prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    result = await worker.generate(prompt=prompt, temperature=0, max_tokens=40)
    assert "Paris" in result.text
    assert result.choices[0].finish_reason == "stop"


async def test_in_the_form_of_the_catalogue_it_knows_it_with_that_line_too(smollm2: str) -> None:
    question = [{"role": "user", "content": "What is the capital of France?"}]
    async with drivetrain.Worker.open(smollm2) as made:
        assert (made.metadata.engine, made.metadata.dtype) == ("llamacpp", "F16")
        assert "Paris" in (await made.generate(messages=question, temperature=0, max_tokens=40)).text
    async with drivetrain.Worker.open(f"{smollm2}:Q4_1") as made:
        assert (made.metadata.name, made.metadata.dtype) == ("smollm2-135m:Q4_1", "Q4_1")


async def test_what_it_says_of_itself(worker: EngineWorker) -> None:
    metadata = worker.metadata
    assert (metadata.engine, metadata.architecture, metadata.dtype, metadata.device) == (
        "llamacpp",
        "llama",
        "Q4_1",
        "cpu",
    )
    assert metadata.context_length == 8192
    assert metadata.vocab_size == 49152
    assert 2 in metadata.eos_ids
    assert worker.capabilities.max_concurrency == 4
    refused = {"presence_penalty", "frequency_penalty", "prompt_logprobs", "images", "guidance_scale"}
    assert not refused & worker.capabilities.parameters


@pytest.mark.parametrize("max_tokens", range(1, 14))
async def test_no_id_of_an_emoji_is_lost(worker: EngineWorker, max_tokens: int) -> None:
    """llama.cpp's stream leaves ids out while a character is incomplete, and all of them at a limit."""
    result = await worker.generate(prompt=EMOJI, max_tokens=max_tokens, **GREEDY)
    ids = result.choices[0].token_ids
    assert len(ids) == max_tokens == result.usage.completion_tokens
    whole = (await worker.generate(prompt=EMOJI, max_tokens=24, **GREEDY)).choices[0]
    assert ids == whole.token_ids[:max_tokens]
    assert await worker.detokenize(list(whole.token_ids)) == whole.text + "�" * (not whole.text.isprintable())
    assert "🎉" in whole.text


async def test_the_recovered_ids_are_those_of_the_other_engine(
    worker: EngineWorker, reference: drivetrain.Worker
) -> None:
    ours = (await worker.generate(prompt=EMOJI, max_tokens=12, **GREEDY)).choices[0]
    theirs = (await reference.generate(prompt=EMOJI, max_tokens=12, **GREEDY)).choices[0]
    assert ours.token_ids == theirs.token_ids


async def test_logprobs_beside_lost_ids(worker: EngineWorker) -> None:
    """The ids are all there; a logprob that the server never sent is None, not made up."""
    choice = (await worker.generate(prompt=EMOJI, max_tokens=15, logprobs=2, **GREEDY)).choices[0]
    assert choice.logprobs is not None
    assert [entry.token_id for entry in choice.logprobs] == list(choice.token_ids)[: len(choice.logprobs)]
    told = [entry for entry in choice.logprobs if entry.logprob is not None]
    assert 0 < len(told) < len(choice.logprobs)
    assert all(len(entry.top) == 2 for entry in told)


@pytest.mark.parametrize("text", TEXTS)
async def test_the_same_ids_as_the_other_tokenizer(
    worker: EngineWorker, reference: drivetrain.Worker, text: str
) -> None:
    ours, theirs = worker.info.tokenizer, reference.info.tokenizer
    for prompt in (
        Prompt.raw(text),
        Prompt.raw(text, add_bos=False),
        Prompt((Segment("<|im_start|>user\n"), Segment(text, literal=True), Segment("<|im_end|>\n")), False),
        Prompt((Segment(text, literal=True),), True),
    ):
        ids = await asyncio.to_thread(ours.encode, prompt)
        assert ids == theirs.encode(prompt)
        assert ours.decode(ids) == theirs.decode(ids)
        assert ours.decode(ids, skip_special=False) == theirs.decode(ids, skip_special=False) == prompt.text


async def test_the_same_vocabulary_as_the_other_tokenizer(worker: EngineWorker, reference: drivetrain.Worker) -> None:
    ours, theirs = worker.info.tokenizer, reference.info.tokenizer
    assert ours.vocab_size == theirs.vocab_size
    assert ours.special_strings == theirs.special_strings
    assert (ours.bos_token, ours.eos_token) == (theirs.bos_token, theirs.eos_token)
    for token_id in range(ours.vocab_size):
        assert ours.token_bytes(token_id) == theirs.token_bytes(token_id)
        assert ours.is_special(token_id) == theirs.is_special(token_id)
    for token in ("Ġthe", "<|im_end|>", "no such token"):
        assert ours.id_of(token) == theirs.id_of(token)


async def test_logprobs_are_about_those_of_the_other_engine(worker: EngineWorker, reference: drivetrain.Worker) -> None:
    """llama.cpp also rounds the activations to 8 bits, so only about."""
    for prompt in (STORY, "The capital of France is", "def add(a, b):\n    return"):
        ours = (await worker.generate(prompt=prompt, max_tokens=1, logprobs=20, **GREEDY)).choices[0].logprobs
        theirs = (await reference.generate(prompt=prompt, max_tokens=1, logprobs=20, **GREEDY)).choices[0].logprobs
        assert ours
        assert theirs
        a, b = ({top.token_id: top.logprob for top in entry[0].top} for entry in (ours, theirs))
        shared = set(a) & set(b)
        assert len(shared) >= 12
        assert sum(abs(a[i] - b[i]) for i in shared) / len(shared) < 0.4


async def test_penalties_count_prompt_and_answer(worker: EngineWorker) -> None:
    free = (await worker.generate(prompt=STORY, max_tokens=60, **GREEDY)).choices[0].token_ids
    strong = await worker.generate(prompt=STORY, max_tokens=60, repetition_penalty=10.0, **GREEDY)
    assert strong.prompt_token_ids is not None
    seen = [*strong.prompt_token_ids, *strong.choices[0].token_ids]
    assert len(set(strong.choices[0].token_ids)) > len(set(free))
    assert len(set(seen)) >= len(seen) - 3


async def test_bans(worker: EngineWorker) -> None:
    free = (await worker.generate(prompt=STORY, max_tokens=12, **GREEDY)).choices[0].token_ids
    never = (await worker.generate(prompt=STORY, max_tokens=12, suppress_tokens=[free[0]], **GREEDY)).choices[0]
    assert free[0] not in never.token_ids
    first = (await worker.generate(prompt=STORY, max_tokens=12, begin_suppress_tokens=[free[0]], **GREEDY)).choices[0]
    assert first.token_ids[0] != free[0]
    assert len(first.token_ids) == 12


async def test_an_end_that_is_ignored_is_sampled_and_passed(worker: EngineWorker) -> None:
    """Not banned, as llama.cpp's own `ignore_eos` would: the other engines sample it too."""
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say only: hi"}]
    stopped = (await worker.generate(messages=messages, temperature=0, max_tokens=60)).choices[0]
    assert stopped.token_ids[-1] in worker.metadata.eos_ids
    passed = (await worker.generate(messages=messages, temperature=0, max_tokens=60, ignore_eos=True)).choices[0]
    assert passed.token_ids[: len(stopped.token_ids)] == stopped.token_ids
    assert len(passed.token_ids) == 60


async def test_min_tokens_bans_the_ends_until_then(worker: EngineWorker) -> None:
    messages = [{"role": "user", "content": "Say only: hi"}]
    result = (await worker.generate(messages=messages, temperature=0, max_tokens=60, min_tokens=30)).choices[0]
    assert len(result.token_ids) >= 30
    assert not set(result.token_ids[:30]) & set(worker.metadata.eos_ids)


async def test_more_choices_than_slots(worker: EngineWorker) -> None:
    result = await worker.generate(prompt=STORY, max_tokens=6, n=9, temperature=1.0, seed=3, ignore_eos=True)
    assert [len(choice.token_ids) for choice in result.choices] == [6] * 9
    alone = await worker.generate(prompt=STORY, max_tokens=6, temperature=1.0, seed=11, ignore_eos=True)
    assert alone.text == result.choices[8].text


async def test_cancel_in_the_middle_of_a_long_prompt(worker: EngineWorker) -> None:
    begun = time.monotonic()
    await worker.generate(prompt_token_ids=list(range(7000, 7000 + CPU_BATCH)), max_tokens=1)
    batch_s = time.monotonic() - begun
    stream = worker.stream(prompt_token_ids=list(range(1000, 7000)), max_tokens=5)
    await stream.__anext__()
    reading = asyncio.create_task(stream.__anext__())
    await asyncio.sleep(0.5)
    begun = time.monotonic()
    await stream.aclose()
    took_s = time.monotonic() - begun
    with pytest.raises(DrivetrainError):
        await reading
    assert await processing(worker) == 0
    assert took_s < 8 * batch_s  # it waits for a batch or two; the whole prompt has 24
    print(f"cancel during prompt processing: {took_s:.3f} s")


async def test_cancel_while_decoding(worker: EngineWorker) -> None:
    stream = worker.stream(prompt=STORY, max_tokens=500, **GREEDY)
    async for event in stream:
        if isinstance(event, Delta):
            break
    begun = time.monotonic()
    await stream.aclose()
    took_s = time.monotonic() - begun
    assert await processing(worker) == 0
    assert took_s < 3
    print(f"cancel while decoding: {took_s:.3f} s")


async def test_cancel_while_waiting_for_a_slot(worker: EngineWorker) -> None:
    stream = worker.stream(prompt=STORY, max_tokens=300, n=8, seed=1)
    async for event in stream:
        if isinstance(event, Delta):
            break
    await stream.aclose()
    async with asyncio.timeout(60):
        while await processing(worker):  # one that waited may have its slot for the moment until it is told
            await asyncio.sleep(0.01)
    assert (await worker.generate(prompt=STORY, max_tokens=3, n=4, **GREEDY)).usage.completion_tokens == 12


async def test_four_at_once_are_decoded_together(worker: EngineWorker) -> None:
    peak = 0
    running = [asyncio.ensure_future(worker.generate(prompt=f"{STORY} {i}", max_tokens=40, **GREEDY)) for i in range(4)]
    while not all(task.done() for task in running):
        peak = max(peak, await processing(worker))
        await asyncio.sleep(0.01)
    assert peak == 4


async def test_four_at_once_say_what_they_say_alone(smollm2: str) -> None:
    """And each is told no more of the cache than is true."""
    async with worker_on(path_of(smollm2), slots=4) as idle:
        alone = [await idle.generate(prompt=f"{STORY} {i}", max_tokens=8, **GREEDY) for i in range(4)]
        for _ in range(5):
            found = await asyncio.gather(
                *(idle.generate(prompt=f"{STORY} {i}", max_tokens=8, **GREEDY) for i in range(4))
            )
            assert [one.choices[0].token_ids for one in found] == [one.choices[0].token_ids for one in alone]
            assert all(one.usage.cached_tokens < one.usage.prompt_tokens for one in found)


async def test_a_crowd_of_texts_leaves_the_server_threads_for_others(smollm2: str) -> None:
    """Each open connection has one of the server's threads, for five seconds though nothing is asked on it."""
    worker = worker_on(path_of(smollm2), slots=1)
    async with worker:
        tokenizer, all_there = worker.info.tokenizer, threading.Barrier(40)

        def ids() -> list[int]:
            all_there.wait(30)
            return tokenizer.encode(Prompt.raw(STORY * 300))

        with ThreadPoolExecutor(40) as threads:
            began = time.monotonic()
            asked = [threads.submit(ids) for _ in range(40)]
            assert len({tuple(ids) for ids in await asyncio.gather(*map(asyncio.wrap_future, asked))}) == 1
            assert (await worker.generate(prompt=STORY, max_tokens=2, **GREEDY)).usage.completion_tokens == 2
            assert time.monotonic() - began < 4


async def test_more_slots_than_prompt_tokens_in_a_step(smollm2: str) -> None:
    """Each slot needs a place in the step for its one token; llama.cpp ends its process where there are too few."""
    async with worker_on(path_of(smollm2), slots=130, context_length=32) as worker:
        answers = await asyncio.gather(*(worker.generate(prompt=STORY, max_tokens=4, **GREEDY) for _ in range(140)))
        assert {answer.text for answer in answers} == {answers[0].text}


async def test_the_prompt_cache(worker: EngineWorker) -> None:
    ids = await asyncio.to_thread(worker.info.tokenizer.encode, Prompt.raw(STORY * 120))
    ids = ids[:1500]
    begun = time.monotonic()
    first = await worker.generate(prompt_token_ids=ids, max_tokens=2, **GREEDY)
    middle = time.monotonic()
    second = await worker.generate(prompt_token_ids=ids, max_tokens=2, **GREEDY)
    end = time.monotonic()
    assert first.usage.cached_tokens < 100
    assert second.usage.cached_tokens >= 1499
    assert end - middle < (middle - begun) / 3
    assert second.choices[0].token_ids == first.choices[0].token_ids


async def test_the_whole_context_can_be_used(smollm2: str) -> None:
    small = worker_on(path_of(smollm2), context_length=256, slots=1)
    await small.start()
    try:
        result = await small.generate(prompt_token_ids=list(range(300, 500)), temperature=0, ignore_eos=True)
        assert result.usage.total_tokens == 256
        assert result.choices[0].finish_reason == "length"
    finally:
        await small.stop()


async def test_nothing_is_left_after_close(smollm2: str) -> None:
    before = set(threading.enumerate())
    made = worker_on(path_of(smollm2), context_length=512)
    await made.start()
    engine = engine_of(made)
    assert isinstance(engine, LlamaCppEngine)
    process = process_of(engine)
    assert process is not None
    assert process.pid is not None
    stream = made.stream(prompt=STORY, max_tokens=400, **GREEDY)
    await stream.__anext__()
    await made.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", process.port), 1)
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert not {name for name in left if not name.startswith("asyncio_")}  # those of the loop's own executor
    await engine.close()


async def test_the_server_wants_its_key(worker: EngineWorker) -> None:
    import http.client

    engine = engine_of(worker)
    assert isinstance(engine, LlamaCppEngine)
    for path in ("/slots", "/props"):
        connection = http.client.HTTPConnection("127.0.0.1", process_of(engine).port)
        connection.request("GET", path)
        assert connection.getresponse().status == 401
        connection.close()


async def test_a_killed_process_is_a_typed_ending_and_the_engine_is_dead(smollm2: str) -> None:
    made = worker_on(path_of(smollm2), context_length=512)
    await made.start()
    engine = engine_of(made)
    assert isinstance(engine, LlamaCppEngine)
    assert process_of(engine).pid is not None
    try:
        events = []
        with pytest.raises(EngineFailed) as caught:
            async for event in made.stream(prompt=STORY, max_tokens=400, **GREEDY):
                events.append(event)
                if len(events) == 5:
                    os.kill(pid_of(engine), signal.SIGKILL)
        assert caught.value.partial is not None
        assert caught.value.partial.choices[0].text
        assert "not running" in caught.value.message
        assert not engine.health().alive
        assert engine.health().detail
        with pytest.raises(DrivetrainError):
            await made.generate(prompt=STORY, max_tokens=3)
    finally:
        await made.stop()


async def test_cancelling_a_load_leaves_no_process(smollm2: str) -> None:
    engine = LlamaCppEngine()
    spec = ModelSpec(name="m", path=path_of(smollm2), format=WeightsFormat.GGUF)
    loading = asyncio.create_task(engine.load(spec, lambda what, share: None))
    while engine._process is None or process_of(engine).pid is None:
        await asyncio.sleep(0.005)
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading
    assert not process_of(engine).alive


async def test_the_loop_is_not_held_up_by_loading(smollm2: str) -> None:
    engine = LlamaCppEngine()
    spec = ModelSpec(name="m", path=path_of(smollm2), format=WeightsFormat.GGUF)
    loading = asyncio.create_task(engine.load(spec, lambda what, share: None))
    longest_s = 0.0
    while not loading.done():
        begun = time.monotonic()
        await asyncio.sleep(0)
        longest_s = max(longest_s, time.monotonic() - begun)
        await asyncio.sleep(0.002)
    await engine.close()
    assert longest_s < 0.5  # llama.cpp in our own process would hold Python's lock for all of it


async def processing(worker: EngineWorker) -> int:
    """How many of the server's slots are busy, as the server itself says."""
    engine = engine_of(worker)
    assert isinstance(engine, LlamaCppEngine)
    assert engine._served is not None
    slots = await engine._served.connection.ask("GET", "/slots")
    return sum(slot["is_processing"] for slot in slots)

"""The native engine on real weights: fifty prompts say what `model.generate` says, alone and in any company."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import drivetrain
import tiny
from drivetrain.core.events import Delta
from drivetrain.core.results import Choice
from drivetrain.engines.checkpoint.quiet import quiet_library
from drivetrain.worker.worker import EngineWorker

pytestmark = [pytest.mark.slow, pytest.mark.in_turn(2), pytest.mark.timeout(600)]

TOKENS = 24
AT_ONCE = 16
NEAR = 1e-4
"""Of a logprob: so far may other kernels and another order of adding carry. Two ids that are closer are a tie."""

CHATS = (
    "What is the capital of France?", "Write a haiku about rain.", "How do I sort a list in Python?",
    "Explain gravity to a child.", "¿Qué hora es?", "What is 17 times 23?", "Translate 'good morning' to German.",
    "Give me three names for a cat.", "Who wrote Hamlet?", "Why is the sea salty?", "Hi!", "List five prime numbers.",
)  # fmt: skip
CODE = (
    "import os\nimport sys\n\ndef main():\n    ", "SELECT name, age FROM users WHERE ", "#include <stdio.h>\nint main(",
    "for (let i = 0; i < 10; i++) {\n  ", '{"a": [1, 2, {"b": null}], "c": ', "class Stack:\n    def __init__(self",
)  # fmt: skip
NUMBERS = ("1, 1, 2, 3, 5, 8, 13,", "3.14159265", "2 + 2 = 4\n3 + 3 = 6\n4 + 4 =", "2024-01-01, 2024-01-02,")


def prompts(tokenizer: Any) -> list[list[int]]:
    """Fifty of all kinds: questions, many languages, code, numbers, long ones, chats, a single word."""
    from tiny.texts import CORPUS

    long = [" ".join(CORPUS[i : i + 12]) for i in (0, 3, 5)]
    texts = [*tiny.TEXT, *CODE, *NUMBERS, *long, *(text[: len(text) // 2] for text in CORPUS[17:21]), "The"]
    chats = [tokenizer.apply_chat_template([{"role": "user", "content": text}], tokenize=False) for text in CHATS]
    begun = [text + "<|im_start|>assistant\n" for text in chats]
    return [tokenizer(text).input_ids for text in (*texts, *begun)]


@dataclass(frozen=True)
class Plain:
    """What the library says by itself. `gaps` is how far the likeliest id is above the next one, at each place."""

    prompt: list[int]
    ids: list[int]
    logprobs: list[float]
    seconds: list[int]
    gaps: list[float]


def plainly(folder: Path) -> list[Plain]:
    """`model.generate` in float32, prompts of about one length together; the last three are the long ones."""
    import torch
    import transformers as hf

    said: list[Plain] = []
    with quiet_library():
        model = hf.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        tokenizer = hf.AutoTokenizer.from_pretrained(folder, padding_side="left")
        asked = prompts(tokenizer)
        ends = model.generation_config.eos_token_id
        ends = set(ends) if isinstance(ends, list) else {ends}
        asked.sort(key=len)
        for group in (asked[:24], asked[24:47], asked[47:]):
            padded = tokenizer.pad({"input_ids": list(group)}, return_tensors="pt")
            out = model.generate(
                **padded,
                do_sample=False,
                num_beams=1,
                max_new_tokens=TOKENS,
                output_logits=True,
                return_dict_in_generate=True,
            )
            logprobs = torch.log_softmax(torch.stack(out.logits, dim=1), dim=-1)
            top, which = logprobs.topk(2, dim=-1)
            sampled = out.sequences[:, padded.input_ids.shape[1] :].tolist()
            for row, (prompt, ids) in enumerate(zip(group, sampled, strict=True)):
                count = next((i + 1 for i, token_id in enumerate(ids) if token_id in ends), len(ids))
                said.append(
                    Plain(
                        prompt=prompt,
                        ids=ids[:count],
                        logprobs=top[row, :count, 0].tolist(),
                        seconds=which[row, :count, 1].tolist(),
                        gaps=(top[row, :count, 0] - top[row, :count, 1]).tolist(),
                    )
                )
    return said


@pytest.fixture(scope="module")
def folder(smollm2: str) -> Path:
    """The checkpoint's own folder: made of the GGUF file once, when an engine first needs it."""
    from drivetrain.store.store import Store

    store = Store()
    return store.derived_path(store.resolve(smollm2), "safetensors")


@pytest.fixture(scope="module")
async def worker(smollm2: str) -> AsyncIterator[EngineWorker]:
    async with drivetrain.Worker.open(
        smollm2, engine="native", dtype="float32", max_running=AT_ONCE, max_waiting=200
    ) as made:
        yield made


@pytest.fixture(scope="module")
def plain(worker: EngineWorker, folder: Path) -> list[Plain]:
    said = plainly(folder)
    assert len(said) == 50
    assert len({tuple(one.ids) for one in said}) > 40  # else the test would prove nothing
    return said


async def ask(worker: EngineWorker, prompt: Sequence[int], **more: Any) -> Choice:
    request = {"temperature": 0, "max_tokens": TOKENS, "logprobs": 0, **more}
    return (await worker.generate(prompt_token_ids=list(prompt), **request)).choices[0]


def ties(choices: Sequence[Choice], wanted: Sequence[Plain]) -> int:
    """Assert that these are the same answers. Returns how many part at a tie; from there on they are other texts."""
    found = 0
    for choice, said in zip(choices, wanted, strict=True):
        same = next((i for i, (a, b) in enumerate(zip(choice.token_ids, said.ids, strict=False)) if a != b), None)
        if same is None:
            assert choice.token_ids == tuple(said.ids)
        else:
            assert said.gaps[same] < NEAR, (said.prompt, same)
            assert choice.token_ids[same] == said.seconds[same]
            found += 1
        until = len(said.ids) if same is None else same
        assert choice.logprobs is not None
        told = [entry.logprob for entry in choice.logprobs][:until]
        assert len(told) >= until - 1  # the logprob of an end token is not listed
        assert told == pytest.approx(said.logprobs[: len(told)], abs=NEAR)
    return found


async def test_alone(worker: EngineWorker, plain: list[Plain], record_property: Any) -> None:
    choices = [await ask(worker, said.prompt) for said in plain]
    count = ties(choices, plain)
    record_property("parted at a tie", count)
    assert count <= 1


async def test_in_a_batch_of_16_with_arrivals_and_aborts(
    worker: EngineWorker, plain: list[Plain], record_property: Any
) -> None:
    """Each is asked once; between them others are drawn, in several choices, or go away half-way."""
    rng = random.Random(3)
    gate = asyncio.Semaphore(AT_ONCE)
    aborted = 0

    async def wanted(said: Plain) -> Choice:
        await asyncio.sleep(rng.random())
        async with gate:
            return await ask(worker, said.prompt)

    async def leaves(said: Plain) -> None:
        nonlocal aborted
        await asyncio.sleep(rng.random() * 4)
        async with gate:
            ids: list[int] = []
            stream = worker.stream(prompt_token_ids=said.prompt, temperature=0, max_tokens=TOKENS)
            async for event in stream:
                if isinstance(event, Delta):
                    ids += event.token_ids
                if len(ids) >= 5:
                    break
            await stream.aclose()
            aborted += 1

    async def draws(said: Plain) -> None:
        await asyncio.sleep(rng.random() * 4)
        async with gate:
            await worker.generate(prompt_token_ids=said.prompt, temperature=1.0, top_p=0.9, max_tokens=8, n=2)

    shuffled = rng.sample(plain, len(plain))
    others = [leaves(said) for said in shuffled[:10]] + [draws(said) for said in shuffled[10:16]]
    choices, _ = await asyncio.gather(asyncio.gather(*(wanted(said) for said in shuffled)), asyncio.gather(*others))
    assert aborted == 10
    count = ties(choices, shuffled)
    record_property("parted at a tie", count)
    assert count <= 1
    assert worker.status.running == 0


async def test_the_prefix_cache_changes_no_answer(smollm2: str, worker: EngineWorker, plain: list[Plain]) -> None:
    """On: found and used. Off, by the setting: never. Ids equal, logprobs within 1e-4."""
    shared = next(said.prompt for said in plain if len(said.prompt) > 250)[:192]  # whole blocks
    asked = [shared + said.prompt[:40] for said in plain[10:18]]
    first = await ask(worker, asked[0])
    on = [await worker.generate(prompt_token_ids=ids, temperature=0, max_tokens=8, logprobs=0) for ids in asked]
    assert all(result.usage.cached_tokens >= len(shared) for result in on)
    async with drivetrain.Worker.open(smollm2, engine="native", dtype="float32", prefix_cache=False) as without:
        off = [await without.generate(prompt_token_ids=ids, temperature=0, max_tokens=8, logprobs=0) for ids in asked]
    assert not any(result.usage.cached_tokens for result in off)
    for one, other in zip(on, off, strict=True):
        cached, computed = one.choices[0], other.choices[0]
        assert cached.token_ids == computed.token_ids
        assert [entry.logprob for entry in cached.logprobs or ()] == pytest.approx(
            [entry.logprob for entry in computed.logprobs or ()], abs=NEAR
        )
    assert first.token_ids[:8] == on[0].choices[0].token_ids

"""A tiny model that sees images, with random weights, on vLLM itself: held against the same model on transformers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import drivetrain
import tiny
from drivetrain import Delta
from drivetrain.core.errors import ContextOverflow, InvalidRequest, Unsupported
from drivetrain.worker.worker import EngineWorker
from probe import engine_of
from tiny import pictures, vision

pytestmark = pytest.mark.in_turn(0)
HEAD = {"head_dim": 32}
"""vLLM's attention on a CPU has no kernel for heads as small as those of the other tiny models."""
SETTINGS: dict[str, Any] = {
    "context_length": 512,
    "kv_cache_gb": 0.25,
    "max_batch": 4,
    "vllm_args": {"enforce_eager": True},
}
CIRCLE, STRIPES = pictures.circle(), pictures.stripes()
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "max_tokens": 12, "repetition_penalty": 1.0}


def chat(*images: Any, text: str = "Describe the picture.") -> list[dict[str, Any]]:
    parts = [{"type": "image_url", "image_url": {"url": pictures.data_uri(image)}} for image in images]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with mock.patch.dict(vision.TEXT, HEAD):
        return tiny.checkpoint("idefics3", tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
async def seeing(folder: Path) -> AsyncIterator[EngineWorker]:
    async with drivetrain.Worker.open(folder, engine="vllm", dtype="float32", **SETTINGS) as made:
        yield made


@pytest.fixture(autouse=True)
async def nothing_left_behind(seeing: EngineWorker) -> AsyncIterator[None]:
    yield
    engine: Any = engine_of(seeing)
    async with asyncio.timeout(30):
        while seeing.status.running or engine.busy or engine._core._llm.output_processor.has_unfinished_requests():
            await asyncio.sleep(0.005)


async def test_what_it_says_is_what_the_model_says_on_transformers(folder: Path, seeing: EngineWorker) -> None:
    async with drivetrain.Worker.open(folder, engine="transformers", dtype="float32") as other:
        for images in ((CIRCLE,), (STRIPES,), (pictures.stripes(80, 40),), (CIRCLE, STRIPES), ()):
            ours = await seeing.generate(messages=chat(*images), **GREEDY, logprobs=1)
            theirs = await other.generate(messages=chat(*images), **GREEDY, logprobs=1)
            assert ours.prompt_token_ids == theirs.prompt_token_ids
            assert ours.choices[0].token_ids == theirs.choices[0].token_ids
            assert logprobs_of(ours) == pytest.approx(logprobs_of(theirs), abs=1e-3)


def logprobs_of(result: Any) -> list[float]:
    return [entry.logprob for entry in result.choices[0].logprobs]


async def test_another_image_gives_another_answer(seeing: EngineWorker) -> None:
    one, other = [await seeing.generate(messages=chat(image), **GREEDY, logprobs=1) for image in (CIRCLE, STRIPES)]
    assert abs(logprobs_of(one)[0] - logprobs_of(other)[0]) > 1e-3


async def test_every_token_of_an_image_is_counted(seeing: EngineWorker) -> None:
    """Two by two tiles and the whole, with four tokens each."""
    engine: Any = engine_of(seeing)
    place = engine._tokenizer.id_of("<image>")
    for images in ((), (CIRCLE,), (CIRCLE, STRIPES)):
        result = await seeing.generate(messages=chat(*images), **GREEDY)
        ids = result.prompt_token_ids
        assert ids is not None
        assert len(ids) == result.usage.prompt_tokens
        assert ids.count(place) == 20 * len(images)


async def test_each_choice_sees_the_image_and_has_its_seed(seeing: EngineWorker) -> None:
    hot = {**GREEDY, "temperature": 1.0}
    both = await seeing.generate(messages=chat(CIRCLE), **hot, n=2, seed=3)
    alone = await seeing.generate(messages=chat(CIRCLE), **hot, seed=4)
    assert both.choices[1].token_ids == alone.choices[0].token_ids
    assert both.choices[0].token_ids != both.choices[1].token_ids


async def test_it_streams_what_it_says(seeing: EngineWorker) -> None:
    whole = await seeing.generate(messages=chat(CIRCLE), **GREEDY)
    texts = [e.text async for e in seeing.stream(messages=chat(CIRCLE), **GREEDY) if isinstance(e, Delta)]
    assert "".join(texts) == whole.text


async def test_the_context_counts_the_images(seeing: EngineWorker) -> None:
    for changes, param in (({"context_length": 20}, "messages"), ({"max_tokens": 500}, "max_tokens")):
        with pytest.raises(ContextOverflow) as caught:
            await seeing.generate(messages=chat(CIRCLE), **{**GREEDY, **changes})
        assert caught.value.param == param


async def test_images_without_a_place_are_refused(seeing: EngineWorker) -> None:
    for prompt in ("No place at all.", "Two: <image> and <image>."):
        with pytest.raises(InvalidRequest) as caught:
            await seeing.generate(prompt=prompt, images=[pictures.png(CIRCLE)], **GREEDY)
        assert caught.value.param == "images"
    with pytest.raises(InvalidRequest) as caught:
        await seeing.generate(messages=chat(CIRCLE, text="And <image>?"), **GREEDY)
    assert caught.value.param == "messages"


async def test_a_request_that_left_does_not_take_its_image_along(seeing: EngineWorker) -> None:
    before = await seeing.generate(messages=chat(STRIPES), **GREEDY)
    for wait_s in (0.0, 0.005, 0.05):
        stream = seeing.stream(messages=chat(STRIPES), **{**GREEDY, "max_tokens": 400})
        reading = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(wait_s)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await stream.aclose()
    after = await seeing.generate(messages=chat(STRIPES), **GREEDY)
    assert after.choices[0].token_ids == before.choices[0].token_ids


async def test_a_cached_beginning_has_the_image_in_it_and_a_salt_keeps_it_apart(seeing: EngineWorker) -> None:
    async def cached(image: Any, salt: str) -> int:
        asked = chat(image, text="a picture " * 25)
        return (await seeing.generate(messages=asked, **GREEDY, cache_salt=salt)).usage.cached_tokens

    assert await cached(CIRCLE, "one") == 0
    assert await cached(CIRCLE, "one") > 0
    assert await cached(STRIPES, "one") == 0
    assert await cached(CIRCLE, "two") == 0


async def test_a_model_without_eyes_refuses_images(worker: EngineWorker) -> None:
    with pytest.raises(Unsupported, match="does not support images"):
        await worker.generate(messages=chat(CIRCLE), **GREEDY)

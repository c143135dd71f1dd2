"""DeepSeek-VL2 on vLLM, tiny and with random weights: its family, its processor, and an answer that saw the image.

The transformers library has no DeepSeek-VL2 to hold it against.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

import drivetrain
from drivetrain import Delta
from drivetrain.core.errors import InvalidRequest
from drivetrain.worker.worker import EngineWorker
from on_vllm_vision import deepseek_vl2
from probe import engine_of
from tiny import pictures

pytestmark = pytest.mark.in_turn(2)

SETTINGS: dict[str, Any] = {
    "context_length": 2048,
    "kv_cache_gb": 0.25,
    "max_batch": 4,
    "vllm_args": {"enforce_eager": True},
}
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "max_tokens": 8, "repetition_penalty": 1.0}
CIRCLE, STRIPES = pictures.circle(), pictures.stripes()
TILE = 14 * 15
"""14 x 14 places and an end for each row."""
IMAGE = 2 * TILE + 1
"""The whole picture and one tile of it, with a mark between them."""


def chat(*images: Any, text: str = "Describe this picture.") -> list[dict[str, Any]]:
    parts = [{"type": "image_url", "image_url": {"url": pictures.data_uri(image)}} for image in images]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


@pytest.fixture(scope="module")
async def seeing(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EngineWorker]:
    folder = deepseek_vl2.checkpoint(tmp_path_factory.mktemp("deepseek-vl2"))
    async with drivetrain.Worker.open(folder, engine="vllm", dtype="float32", **SETTINGS) as made:
        yield made


async def test_its_own_prompt_form_is_found(seeing: EngineWorker) -> None:
    assert seeing.metadata.family == "deepseek-vl2"
    assert seeing.metadata.architecture == "deepseek_vl_v2"
    assert seeing.capabilities.vision
    ends = {await seeing.detokenize([i]) for i in seeing.metadata.eos_ids}
    assert "<|User|>" in ends | set(seeing.metadata.stop)


async def test_an_image_is_seen_and_each_of_its_places_is_counted(seeing: EngineWorker) -> None:
    first = []
    for images in ((), (CIRCLE,), (STRIPES,)):
        answer = await seeing.generate(messages=chat(*images), **GREEDY, logprobs=1)
        ids, logprobs = answer.prompt_token_ids, answer.choices[0].logprobs
        assert ids is not None
        assert logprobs is not None
        assert len(ids) == answer.usage.prompt_tokens
        assert answer.usage.completion_tokens == GREEDY["max_tokens"]
        assert ids.count(place(seeing)) == IMAGE * len(images)
        first.append(logprobs[0].logprob or 0.0)
    assert abs(first[1] - first[2]) > 1e-3, "two pictures, and the same answer"


def place(worker: EngineWorker) -> int:
    engine: Any = engine_of(worker)
    found: int = engine._tokenizer.id_of("<image>")
    return found


async def test_what_is_streamed_is_the_answer(seeing: EngineWorker) -> None:
    whole = await seeing.generate(messages=chat(CIRCLE), **GREEDY)
    texts = [e.text async for e in seeing.stream(messages=chat(CIRCLE), **GREEDY) if isinstance(e, Delta)]
    assert "".join(texts) == whole.text
    assert whole.choices[0].token_ids


async def test_a_stop_of_several_ids_ends_it_and_is_not_in_the_text(seeing: EngineWorker) -> None:
    whole = await seeing.generate(messages=chat(CIRCLE), **GREEDY)
    ids = whole.choices[0].token_ids
    stopped = await seeing.generate(messages=chat(CIRCLE), **GREEDY, stop_sequences=[list(ids[2:4])])
    assert stopped.choices[0].finish_reason == "stop"
    assert len(stopped.choices[0].token_ids) <= 4
    assert whole.text.startswith(stopped.text)
    assert len(stopped.text) < len(whole.text)


async def test_a_picture_without_a_place_is_refused(seeing: EngineWorker) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await seeing.generate(prompt="No place.", images=[pictures.png(CIRCLE)], **GREEDY)
    assert caught.value.param == "images"

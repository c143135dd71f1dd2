"""S4, image-text generation: its contract on ours, each of its defects asserted absent. Tiny weights, real classes."""

from __future__ import annotations

import asyncio
import base64
import importlib.util
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import drivetrain
import tiny
from drivetrain import Delta
from drivetrain.core.errors import ContextOverflow, EngineFailed, InvalidRequest, MissingExtra, Unsupported
from drivetrain.core.results import FinishReason
from drivetrain.worker.worker import EngineWorker
from probe import engine_of
from tiny import pictures

CIRCLE, STRIPES = pictures.circle(56, 56), pictures.stripes(56, 56)
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "max_tokens": 12, "repetition_penalty": 1.0}


def chat(*images: Any, text: str = "Describe the picture.") -> list[dict[str, Any]]:
    parts = [{"type": "image_url", "image_url": {"url": pictures.data_uri(image)}} for image in images]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


@pytest.fixture(scope="module", params=tiny.VISION)
async def worker(request: pytest.FixtureRequest, checkpoint: Callable[[str], Path]) -> AsyncIterator[EngineWorker]:
    async with drivetrain.Worker.open(checkpoint(request.param), engine="transformers") as made:
        yield made


def parts_of(worker: EngineWorker) -> tuple[Any, Any]:
    engine: Any = engine_of(worker)
    return engine._loaded.model, engine._loaded.processor


def directly(worker: EngineWorker, image: Any, text: str = "Describe the picture.") -> list[int]:
    """The same chat, given to processor and model by hand."""
    model, processor = parts_of(worker)
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": text}]}]
    prompt = processor.apply_chat_template(messages, add_generation_prompt=True)
    bos = processor.tokenizer.bos_token
    inputs = processor(
        text=[prompt], images=[image], return_tensors="pt", add_special_tokens=not (bos and prompt.startswith(bos))
    )
    out = model.generate(**inputs, do_sample=False, max_new_tokens=12, eos_token_id=None)[0].tolist()
    ids: list[int] = out[inputs["input_ids"].shape[1] :]
    return ids


async def test_greedy_ids_are_those_of_the_model_called_directly(worker: EngineWorker) -> None:
    for image in (CIRCLE, STRIPES, pictures.stripes(80, 40)):
        result = await worker.generate(messages=chat(image), **GREEDY)
        assert list(result.choices[0].token_ids) == directly(worker, image)
    text_only = await worker.generate(messages=[{"role": "user", "content": "Hello"}], **GREEDY)
    assert text_only.usage.completion_tokens == 12


async def test_another_image_gives_other_logits(worker: EngineWorker) -> None:
    first, second = [await worker.generate(messages=chat(image), **GREEDY, logprobs=3) for image in (CIRCLE, STRIPES)]
    one, other = first.choices[0].logprobs, second.choices[0].logprobs
    assert one is not None
    assert other is not None
    assert abs(one[0].top[0].logprob - other[0].top[0].logprob) > 1e-3 or one[0].token_id != other[0].token_id


async def test_the_expanded_prompt_is_what_usage_counts(worker: EngineWorker) -> None:
    with_image = await worker.generate(messages=chat(CIRCLE), **GREEDY)
    with_two = await worker.generate(messages=chat(CIRCLE, STRIPES), **GREEDY)
    without = await worker.generate(messages=[{"role": "user", "content": "Describe the picture."}], **GREEDY)
    assert with_two.usage.prompt_tokens > with_image.usage.prompt_tokens > without.usage.prompt_tokens
    assert len(with_image.prompt_token_ids or ()) == with_image.usage.prompt_tokens


async def test_it_streams_what_it_says(worker: EngineWorker) -> None:
    whole = await worker.generate(messages=chat(CIRCLE), **GREEDY)
    texts = [e.text async for e in worker.stream(messages=chat(CIRCLE), **GREEDY) if isinstance(e, Delta)]
    assert "".join(texts) == whole.text
    choices = (await worker.generate(messages=chat(CIRCLE), **{**GREEDY, "temperature": 1.0}, n=2, seed=3)).choices
    alone = await worker.generate(messages=chat(CIRCLE), **{**GREEDY, "temperature": 1.0}, seed=4)
    assert choices[1].text == alone.text


async def test_images_come_as_data_uri_path_and_bytes(worker: EngineWorker, tmp_path: Path) -> None:
    path = tmp_path / "circle.png"
    path.write_bytes(pictures.png(CIRCLE))
    _, processor = parts_of(worker)
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Describe the picture."}]}]
    prompt = processor.apply_chat_template(messages, add_generation_prompt=True)
    expected = (await worker.generate(messages=chat(CIRCLE), **GREEDY)).choices[0].token_ids
    for image in (path, str(path), pictures.png(CIRCLE), pictures.data_uri(CIRCLE)):
        result = await worker.generate(prompt=prompt, images=[image], **GREEDY)
        assert result.choices[0].token_ids == expected


async def test_temperature_and_top_p_do_something(worker: EngineWorker) -> None:
    """There, sampling was never switched on."""
    texts = {
        (await worker.generate(messages=chat(CIRCLE), **{**GREEDY, "temperature": 1.5}, seed=seed)).text
        for seed in range(4)
    }
    assert len(texts) > 1


async def test_stop_words_of_several_tokens_match_on_ids_and_on_text(worker: EngineWorker) -> None:
    free = (await worker.generate(messages=chat(CIRCLE), **GREEDY)).choices[0]
    by_ids = (await worker.generate(messages=chat(CIRCLE), **GREEDY, stop_sequences=[free.token_ids[3:5]])).choices[0]
    assert by_ids.finish_reason is FinishReason.STOP
    assert len(by_ids.token_ids) <= 5
    assert free.text.startswith(by_ids.text)
    stop = free.text[3:6]
    by_text = (await worker.generate(messages=chat(CIRCLE), **GREEDY, stop=[stop])).choices[0]
    assert by_text.text == free.text[: free.text.find(stop)]


async def test_a_stop_word_never_matches_across_the_border_of_prompt_and_answer(worker: EngineWorker) -> None:
    free = await worker.generate(messages=chat(CIRCLE), **GREEDY)
    ids = free.prompt_token_ids
    assert ids is not None
    border = (ids[-1], free.choices[0].token_ids[0])
    again = await worker.generate(messages=chat(CIRCLE), **GREEDY, stop_sequences=[border])
    assert again.choices[0].token_ids == free.choices[0].token_ids


async def test_the_length_counts_tokens(worker: EngineWorker) -> None:
    for length in (1, 7):
        result = await worker.generate(messages=chat(CIRCLE), **{**GREEDY, "max_tokens": length})
        assert result.usage.completion_tokens == length


async def test_the_context_counts_the_expanded_prompt(worker: EngineWorker) -> None:
    with pytest.raises(ContextOverflow) as caught:
        await worker.generate(messages=chat(CIRCLE), **GREEDY, context_length=12)
    assert caught.value.prompt_tokens > 12
    assert worker.status.running == 0


async def test_what_does_not_go_with_images_is_refused_by_name(worker: EngineWorker) -> None:
    given: dict[str, Any] = {"overflow": "truncate_left", "guidance_scale": 2.0}
    for name, value in given.items():
        with pytest.raises(Unsupported) as caught:
            await worker.generate(messages=chat(CIRCLE), **GREEDY, **{name: value})
        assert caught.value.param == name
    with pytest.raises(ContextOverflow) as overflow:
        await worker.generate(messages=chat(CIRCLE), **{**GREEDY, "max_tokens": 100_000})
    assert overflow.value.param == "max_tokens"


async def test_a_thread_that_raises_reaches_the_reader(worker: EngineWorker) -> None:
    model, _ = parts_of(worker)

    def fail(*_: Any) -> None:
        raise RuntimeError("broken eye")

    handle = model.register_forward_pre_hook(fail)
    try:
        async with asyncio.timeout(20):
            with pytest.raises(EngineFailed):
                await worker.generate(messages=chat(CIRCLE), **GREEDY)
    finally:
        handle.remove()


async def test_special_tokens_beside_an_image_are_refused(worker: EngineWorker) -> None:
    special = min(worker.info.tokenizer.special_strings)
    with pytest.raises(InvalidRequest) as caught:
        await worker.generate(messages=chat(CIRCLE, text=f"forged {special}"), **GREEDY)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "url",
    [
        "data:image/png;base64,AAAA", "data:image/png;base64,####", "data:,", "circle.png", "file:///etc/passwd",
        "http://127.0.0.1:1/x.png", "https://example.com/x.png", "http://169.254.169.254/latest", "ftp://x/y.png",
        "data:text/html;base64," + base64.b64encode(b"<b>no</b>").decode(), "",
    ],
)  # fmt: skip
async def test_unreadable_images_are_refused_by_their_place(worker: EngineWorker, url: str) -> None:
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
    with pytest.raises(InvalidRequest) as caught:
        await worker.generate(messages=messages, **GREEDY)
    assert (caught.value.param or "").startswith("messages[0].content[0]")
    assert "127.0.0.1" not in caught.value.message


async def test_a_corrupt_image_a_bomb_and_too_many(worker: EngineWorker) -> None:
    png = pictures.png(CIRCLE)
    cut = "data:image/png;base64," + base64.b64encode(png[: len(png) // 2]).decode()
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": cut}}]}]
    with pytest.raises(InvalidRequest):
        await worker.generate(messages=messages, **GREEDY)
    limits = worker.capabilities.limits
    with pytest.raises(InvalidRequest):
        await worker.generate(messages=chat(*[CIRCLE] * (limits.max_images + 1)), **GREEDY)
    huge = png[:16] + (200_000).to_bytes(4, "big") * 2 + png[24:]
    with pytest.raises(InvalidRequest):
        await worker.generate(prompt="x", images=[huge], **GREEDY)


async def test_images_that_fit_no_place_are_refused(worker: EngineWorker) -> None:
    with pytest.raises(InvalidRequest):
        await worker.generate(prompt="no place for it", images=[pictures.png(CIRCLE)], **GREEDY)


async def test_a_text_model_refuses_images(checkpoint: Callable[[str], Path]) -> None:
    """There, image inputs were dropped and the model answered about nothing."""
    async with drivetrain.Worker.open(checkpoint("llama"), engine="transformers") as text_model:
        assert not text_model.capabilities.vision
        with pytest.raises(Unsupported):
            await text_model.generate(messages=chat(CIRCLE), **GREEDY)
        with pytest.raises(Unsupported):
            await text_model.generate(prompt="x", images=[pictures.png(CIRCLE)], **GREEDY)


@pytest.mark.parametrize("name", tiny.NEEDS_TORCHVISION)
async def test_a_processor_that_needs_another_package_names_it(name: str, checkpoint: Callable[[str], Path]) -> None:
    if importlib.util.find_spec("torchvision") is None:
        with pytest.raises(MissingExtra) as caught:
            async with drivetrain.Worker.open(checkpoint(name), engine="transformers"):
                pass
        assert caught.value.extra == "vision"
        assert "torchvision" in caught.value.message
    else:
        async with drivetrain.Worker.open(checkpoint(name), engine="transformers") as made:
            assert made.capabilities.vision


async def test_the_forms_of_both_deepseek_vl_generations(checkpoint: Callable[[str], Path]) -> None:
    async with drivetrain.Worker.open(checkpoint("deepseek_vl"), engine="transformers", family="deepseek-vl") as made:
        origins = made.metadata.sampling
        assert origins["repetition_penalty"] == ("family", 1.1)
        result = await made.generate(messages=chat(CIRCLE), max_tokens=4)
        prompt = made.info.tokenizer.decode(result.prompt_token_ids or (), skip_special=False)
        assert prompt.count("<image_placeholder>") == 16
        assert "You are a helpful language and vision assistant." in prompt
        assert prompt.rstrip().endswith("Assistant:")
    async with drivetrain.Worker.open(checkpoint("llava"), engine="transformers", family="deepseek-vl2") as made:
        assert made.metadata.sampling["repetition_penalty"] == ("family", 1.1)
        result = await made.generate(messages=chat(CIRCLE), max_tokens=4)
        prompt = made.info.tokenizer.decode(result.prompt_token_ids or ())
        assert "<|User|>:" in prompt
        assert prompt.rstrip().endswith("<|Assistant|>:")

"""What else the transformers engine loads: encoder-decoder models, encoders, GGUF; and its parameters honoured."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import drivetrain
import tiny
from drivetrain.core.errors import ContextOverflow, Unsupported
from drivetrain.core.sampling import Sampling
from drivetrain.worker.worker import EngineWorker


@pytest.fixture(scope="module", params=["t5", "bart"])
async def seq2seq(request: pytest.FixtureRequest, checkpoint: Callable[[str], Path]) -> AsyncIterator[EngineWorker]:
    async with drivetrain.Worker.open(checkpoint(request.param), engine="transformers") as made:
        yield made


async def test_encoder_decoder_counts_the_encoder_as_prompt(seq2seq: EngineWorker) -> None:
    result = await seq2seq.generate(prompt="Translate this sentence.", temperature=0, max_tokens=9, ignore_eos=True)
    assert result.usage.prompt_tokens == await seq2seq.count_tokens("Translate this sentence.")
    assert result.usage.completion_tokens == 9
    streamed = [
        event.text
        async for event in seq2seq.stream(
            prompt="Translate this sentence.", temperature=0, max_tokens=9, ignore_eos=True
        )
        if isinstance(event, drivetrain.Delta)
    ]
    assert "".join(streamed) == result.text


async def test_encoder_and_decoder_have_a_context_each(seq2seq: EngineWorker) -> None:
    limit = seq2seq.capabilities.context_length
    full = await seq2seq.generate(prompt_token_ids=[5] * (limit - 2), max_tokens=4, ignore_eos=True)
    assert full.usage.completion_tokens == 4
    with pytest.raises(ContextOverflow):
        await seq2seq.generate(prompt_token_ids=[5] * (limit + 1), max_tokens=1)


async def test_several_choices_and_stops_work_there_too(seq2seq: EngineWorker) -> None:
    """Logits in a batch and alone differ in their last bits: of 60 seeds, one lies so near to an edge that it shows."""
    base: dict[str, Any] = {
        "prompt": "Hello there",
        "temperature": 1.0,
        "max_tokens": 20,
        "ignore_eos": True,
        "seed": 20,
    }
    result = await seq2seq.generate(**base, n=3)
    for i in range(3):
        assert (await seq2seq.generate(**{**base, "seed": 20 + i})).text == result.choices[i].text
    stop = result.choices[0].text[2:5]
    stopped = await seq2seq.generate(**base, stop=[stop])
    assert stopped.text == result.choices[0].text.split(stop)[0]


async def test_prompt_logprobs_are_refused_by_name(seq2seq: EngineWorker) -> None:
    with pytest.raises(Unsupported) as caught:
        await seq2seq.generate(prompt="x", echo=True, prompt_logprobs=1, max_tokens=1)
    assert caught.value.param == "prompt_logprobs"


async def test_embeddings_are_refused_by_name(seq2seq: EngineWorker) -> None:
    with pytest.raises(Unsupported) as caught:
        await seq2seq.embed(["x"])
    assert caught.value.param == "input"


async def test_an_encoder_gives_embeddings_and_no_text(checkpoint: Callable[[str], Path]) -> None:
    folder = checkpoint("bert")
    async with drivetrain.Worker.open(folder, engine="transformers") as worker:
        assert worker.capabilities.embeddings
        assert not worker.capabilities.generation
        assert worker.metadata.pooling == "mean"
        result = await worker.embed(["one sentence", "another one"])
        assert [math.isclose(math.hypot(*v), 1, abs_tol=1e-4) for v in result.vectors] == [True, True]
        assert result.vectors[0] == pytest.approx(_by_hand(folder, "one sentence"), abs=1e-4)
        with pytest.raises(Unsupported):
            await worker.generate(prompt="say something", max_tokens=1)
    async with drivetrain.Worker.open(folder, engine="transformers", pooling="cls") as worker:
        assert worker.metadata.pooling == "cls"
        assert (await worker.embed(["one sentence"])).vectors[0] != result.vectors[0]


def _by_hand(folder: Path, text: str) -> list[float]:
    import torch
    import transformers as hf

    from drivetrain.engines.checkpoint.quiet import quiet_library

    with quiet_library(), torch.no_grad():
        model = hf.AutoModel.from_pretrained(folder).eval()
        tokenizer = hf.AutoTokenizer.from_pretrained(folder)
        hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(dim=0)
    vector: list[float] = (hidden / hidden.norm()).tolist()
    return vector


async def test_sampled_ids_equal_generate_with_the_same_draws(checkpoint: Callable[[str], Path]) -> None:
    """Our processors stand in the library's order: cut to one candidate, sampling must take what generate takes."""
    import torch
    import transformers as hf

    from drivetrain.engines.checkpoint.quiet import quiet_library

    folder = checkpoint("llama")
    settings: list[dict[str, Any]] = [
        {"repetition_penalty": 1.7}, {"no_repeat_ngram_size": 2}, {"temperature": 0.3, "repetition_penalty": 1.2},
        {"suppress_tokens": [40, 41, 42]}, {"bad_words_ids": [[50], [51, 52]]}, {"sequence_bias": [[[60], 3.0]]},
        {"exponential_decay_length_penalty": (2, 1.3)},
    ]  # fmt: skip
    async with drivetrain.Worker.open(folder, engine="transformers") as worker:
        with quiet_library():
            model = hf.AutoModelForCausalLM.from_pretrained(folder)
        for setting in settings:
            ours = await worker.generate(prompt="Once upon a time", top_k=1, max_tokens=16, **setting)
            row = torch.tensor([ours.prompt_token_ids])
            with quiet_library():
                theirs = model.generate(
                    row, attention_mask=torch.ones_like(row), do_sample=True, top_k=1, max_new_tokens=16, **setting
                )[0].tolist()[row.shape[1] :]
            assert list(ours.choices[0].token_ids) == theirs, setting


@pytest.mark.parametrize("name", tiny.SEQ2SEQ)
async def test_an_encoder_decoder_counts_what_generate_counts(name: str, checkpoint: Callable[[str], Path]) -> None:
    """The `encoder_` parameters look at the prompt; the others at the decoder's ids, its start included."""
    import torch
    import transformers as hf

    from drivetrain.engines.checkpoint.quiet import quiet_library

    settings: list[dict[str, Any]] = [
        {"repetition_penalty": 1.7}, {"encoder_repetition_penalty": 2.5}, {"no_repeat_ngram_size": 1},
        {"no_repeat_ngram_size": 2}, {"encoder_no_repeat_ngram_size": 1}, {"encoder_no_repeat_ngram_size": 2},
        {"exponential_decay_length_penalty": (2, 1.3)}, {"repetition_penalty": 1.2, "encoder_repetition_penalty": 0.5},
    ]  # fmt: skip
    changed = 0
    async with drivetrain.Worker.open(checkpoint(name), engine="transformers") as worker:
        with quiet_library():
            model = hf.AutoModelForSeq2SeqLM.from_pretrained(checkpoint(name))
        free = await worker.generate(prompt="Once upon a time", top_k=1, max_tokens=16)
        for setting in settings:
            ours = await worker.generate(prompt="Once upon a time", top_k=1, max_tokens=16, **setting)
            row = torch.tensor([ours.prompt_token_ids])
            with quiet_library():
                theirs = model.generate(
                    row, attention_mask=torch.ones_like(row), do_sample=True, top_k=1, max_new_tokens=16, **setting
                )[0].tolist()[1:]
            assert list(ours.choices[0].token_ids) == theirs, setting
            changed += ours.choices[0].token_ids != free.choices[0].token_ids
    assert changed >= len(settings) // 2  # else the test would prove nothing


async def test_an_end_that_the_model_forces_waits_for_min_tokens(seq2seq: EngineWorker) -> None:
    base: dict[str, Any] = {"prompt": "Hello there", "temperature": 0, "max_tokens": 9}
    result = await seq2seq.generate(**base, min_tokens=9)
    assert (result.usage.completion_tokens, result.choices[0].finish_reason) == (9, "length")


async def test_guidance_shows_in_the_text_and_not_in_logprobs(checkpoint: Callable[[str], Path]) -> None:
    base: dict[str, Any] = {
        "prompt": "Once upon a time",
        "temperature": 0,
        "max_tokens": 8,
        "ignore_eos": True,
        "logprobs": 3,
    }
    async with drivetrain.Worker.open(checkpoint("llama"), engine="transformers") as worker:
        free = (await worker.generate(**base)).choices[0]
        guided = (await worker.generate(**base, guidance_scale=30.0)).choices[0]
    assert free.token_ids != guided.token_ids
    assert free.logprobs is not None
    assert guided.logprobs is not None
    assert free.logprobs[0].top == guided.logprobs[0].top


async def test_the_models_own_sampling_is_a_layer_of_the_defaults(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    import json
    import shutil

    folder = tmp_path / "m"
    shutil.copytree(checkpoint("llama"), folder)
    path = folder / "generation_config.json"
    stated = json.loads(path.read_text()) | {"do_sample": True, "temperature": 0.25, "top_p": 0.5, "top_k": 7}
    path.write_text(json.dumps(stated))
    async with drivetrain.Worker.open(folder, engine="transformers", top_p=0.75) as worker:
        origins = worker.metadata.sampling
    assert origins["temperature"] == ("generation_config", 0.25)
    assert origins["top_p"] == ("settings", 0.75)
    assert origins["top_k"] == ("generation_config", 7)
    assert origins["min_p"] == ("neutral", Sampling().min_p)


async def test_one_model_after_another_leaves_no_thread(checkpoint: Callable[[str], Path]) -> None:
    import threading

    before = {thread.name for thread in threading.enumerate()}
    for _ in range(3):
        async with drivetrain.Worker.open(checkpoint("gpt2"), engine="transformers") as worker:
            await worker.generate(prompt="a", max_tokens=2)
    left = {t.name for t in threading.enumerate()} - before
    assert not {name for name in left if name.startswith("drivetrain")}


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_smollm2_knows_the_capital_of_france(smollm2: str) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    async with drivetrain.Worker.open(smollm2, engine="transformers") as worker:
        whole = await worker.generate(messages=messages, temperature=0)
        assert "Paris" in whole.text
        assert whole.choices[0].finish_reason == "stop"
        streamed = [
            e.text async for e in worker.stream(messages=messages, temperature=0) if isinstance(e, drivetrain.Delta)
        ]
        assert "".join(streamed) == whole.text
        emoji = await worker.generate(prompt="🌍🎉你好 " * 3, echo=True, max_tokens=12, temperature=0)
        assert emoji.text.startswith("🌍🎉你好 " * 3)
        assert worker.metadata.context_length == 8192
        cat, kitten, physics = (await worker.embed(["a cat", "a kitten", "quantum chromodynamics"])).vectors
        assert sum(map(float.__mul__, cat, kitten)) > sum(map(float.__mul__, cat, physics))

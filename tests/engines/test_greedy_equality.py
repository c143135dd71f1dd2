"""Greedy ids through the worker equal plain `model.generate`, on tiny weights of real architectures and on SmolLM2."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import drivetrain
import tiny
from drivetrain.engines.checkpoint.quiet import quiet_library

TOKENS = 12


def plainly(
    folder: Path, prompts: list[list[int]], *, seq2seq: bool = False, max_new_tokens: int = TOKENS
) -> list[list[int]]:
    """What the library says by itself, with the model's own generation_config."""
    import transformers as hf

    cls = hf.AutoModelForSeq2SeqLM if seq2seq else hf.AutoModelForCausalLM
    with quiet_library():
        model = cls.from_pretrained(folder)
        answers = []
        for ids in prompts:
            row = _row(ids)
            out = model.generate(
                row, attention_mask=row != -1, do_sample=False, num_beams=1, max_new_tokens=max_new_tokens
            )[0].tolist()
            answers.append(out[1:] if seq2seq else out[len(ids) :])
    return answers


def _row(ids: list[int]) -> Any:
    import torch

    return torch.tensor([ids])


async def through_the_worker(
    model: str, prompts: list[str], max_tokens: int = TOKENS
) -> tuple[list[list[int]], list[list[int]]]:
    asked, answers = [], []
    async with drivetrain.Worker.open(model, engine="transformers") as worker:
        for prompt in prompts:
            result = await worker.generate(prompt=prompt, temperature=0, max_tokens=max_tokens)
            asked.append(list(result.prompt_token_ids or ()))
            answers.append(list(result.choices[0].token_ids))
    return asked, answers


@pytest.mark.parametrize("name", tiny.CAUSAL)
async def test_causal(name: str, checkpoint: Callable[[str], Path]) -> None:
    folder = checkpoint(name)
    asked, answers = await through_the_worker(str(folder), list(tiny.TEXT))
    assert len(asked) == 20
    assert answers == plainly(folder, asked)
    assert len({tuple(answer) for answer in answers}) > 10  # else the test would prove nothing


@pytest.mark.parametrize("name", tiny.SEQ2SEQ)
async def test_encoder_decoder(name: str, checkpoint: Callable[[str], Path]) -> None:
    folder = checkpoint(name)
    asked, answers = await through_the_worker(str(folder), list(tiny.TEXT))
    assert answers == plainly(folder, asked, seq2seq=True)
    assert len({tuple(answer) for answer in answers}) > 10


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_smollm2(smollm2: str) -> None:
    asked, answers = await through_the_worker(smollm2, list(tiny.TEXT), max_tokens=16)
    from drivetrain.store.store import Store

    store = Store()
    folder = store.derived_path(store.resolve(smollm2), "safetensors")
    assert answers == plainly(folder, asked, max_new_tokens=16)

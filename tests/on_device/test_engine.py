"""The whole engine on the device: the ids of `model.generate`, draws, shared beginnings, embeddings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from contract.native_rig import NativeRig, at_once  # noqa: E402 - it needs torch
from drivetrain.core.results import Choice  # noqa: E402
from drivetrain.engines.checkpoint.quiet import quiet_library  # noqa: E402
from drivetrain.engines.native.attention.flex import FlexAttention  # noqa: E402
from drivetrain.engines.native.model.graphs import GraphRunner  # noqa: E402
from drivetrain.worker.worker import EngineWorker  # noqa: E402
from on_device.devices import MODELS, Device, folder  # noqa: E402
from probe import stepper_of  # noqa: E402 - it needs torch

pytestmark = pytest.mark.slow

TOKENS = 18
PROMPTS = [[3 + (7 * i * i + 5 * n) % 190 for i in range(n)] for n in (1, 2, 15, 16, 17, 40, 90)]


@asynccontextmanager
async def opened(device: Device, path: Path, **options: Any) -> AsyncIterator[EngineWorker]:
    given = {"device": device.name, "compile": "off", "kv_cache_gb": 0.01, "max_batch": 8, **options}
    with device.in_use():
        async with NativeRig(lambda _: path).open(options=given) as worker:
            runner = stepper_of(worker).runner
            assert isinstance(runner, GraphRunner)
            assert isinstance(runner.attention, FlexAttention)
            yield worker


async def ask(worker: EngineWorker, prompt: list[int], **more: Any) -> Choice:
    wanted = {"temperature": 0, "max_tokens": TOKENS, "logprobs": 0, "ignore_eos": True, **more}
    return (await worker.generate(prompt_token_ids=prompt, **wanted)).choices[0]


def logprobs(choice: Choice) -> list[float]:
    assert choice.logprobs is not None
    return [entry.logprob for entry in choice.logprobs if entry.logprob is not None]


def judged(device: Device, path: Path, prompt: list[int], choice: Choice, dtype: Any) -> tuple[list[float], float]:
    """The logprobs of these ids by the library's class alone, and how much less likely one is than the likeliest."""
    import transformers as hf

    with quiet_library(), torch.inference_mode():
        model = hf.AutoModelForCausalLM.from_pretrained(path, dtype=dtype).to(device.name)
        ids = torch.tensor([[*prompt, *choice.token_ids]], device=device.name)
        said = torch.log_softmax(model(ids).logits[0, len(prompt) - 1 : -1].float(), dim=-1)
        own = said.gather(1, ids[0, len(prompt) :, None])[:, 0]
    return own.tolist(), float((said.max(dim=-1).values - own).max())


@pytest.mark.parametrize("name", MODELS)
async def test_greedy_ids_are_those_of_the_class(name: str, device: Device, models: Path) -> None:
    """Alone and together, through chunks of prompts and captured steps."""
    path = folder(models, name)
    async with opened(device, path) as worker:
        alone = [await ask(worker, prompt) for prompt in PROMPTS]
        together = await asyncio.gather(*(ask(worker, prompt) for prompt in PROMPTS))
    for prompt, one, other in zip(PROMPTS, alone, together, strict=True):
        own, off = judged(device, path, prompt, one, torch.float32)
        assert off < 1e-3
        assert logprobs(one) == pytest.approx(own, abs=1e-3)
        assert logprobs(other) == pytest.approx(logprobs(one), abs=1e-3)
        assert other.token_ids == one.token_ids


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", MODELS)
async def test_half_precision_is_as_near_as_rounding(name: str, dtype: str, device: Device, models: Path) -> None:
    """The self-test has held the logits against the class; here the steps of a longer answer."""
    path = folder(models, name)
    async with opened(device, path, dtype=dtype) as worker:
        found = await asyncio.gather(*(ask(worker, prompt) for prompt in PROMPTS[2:]))
    for prompt, one in zip(PROMPTS[2:], found, strict=True):
        own, off = judged(device, path, prompt, one, torch.float32)
        assert off < 0.5
        assert logprobs(one) == pytest.approx(own, abs=0.5)


async def test_a_seed_gives_one_answer_in_any_company(device: Device, models: Path) -> None:
    async with opened(device, folder(models, "plain")) as worker:
        drawn = {"temperature": 1.0, "top_p": 0.95, "seed": 5}
        alone = [await ask(worker, prompt, **drawn) for prompt in PROMPTS]
        together = await asyncio.gather(*(ask(worker, prompt, **drawn) for prompt in PROMPTS))
        other = await ask(worker, PROMPTS[-1], **{**drawn, "seed": 6})
    assert [one.token_ids for one in together] == [one.token_ids for one in alone]
    assert other.token_ids != alone[-1].token_ids


async def test_a_shared_beginning_changes_nothing(device: Device, models: Path) -> None:
    beginning = PROMPTS[-1]
    async with opened(device, folder(models, "windows")) as worker:
        first = await worker.generate(prompt_token_ids=[*beginning, 9], temperature=0, max_tokens=8, ignore_eos=True)
        again = await worker.generate(prompt_token_ids=[*beginning, 9], temperature=0, max_tokens=8, ignore_eos=True)
    assert first.usage.cached_tokens == 0
    assert again.usage.cached_tokens >= len(beginning) // 16 * 16
    assert again.choices[0].token_ids == first.choices[0].token_ids


async def test_preempted_ones_say_the_same(device: Device, models: Path) -> None:
    async with opened(device, folder(models, "plain"), context_length=128, prefix_cache=False) as worker:
        scheduler = stepper_of(worker).scheduler
        alone = [await ask(worker, prompt, max_tokens=60) for prompt in PROMPTS[2:6]]
        scheduler.pool.groups[0].num_blocks = 12
        scheduler._headroom = 1
        together = await at_once(worker, *(ask(worker, prompt, max_tokens=60) for prompt in PROMPTS[2:6]))
        assert scheduler.num_preemptions > 0
    assert [one.token_ids for one in together] == [one.token_ids for one in alone]

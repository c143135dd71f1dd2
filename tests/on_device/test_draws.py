"""Ids are drawn on the device as on the CPU, and the cache does there what the accounts say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from drivetrain.core.engine import EngineRequest  # noqa: E402 - these need torch
from drivetrain.core.sampling import Sampling  # noqa: E402
from drivetrain.engines.native.kv.blocks import BLOCK_TOKENS  # noqa: E402
from drivetrain.engines.native.kv.cache import KvCache, LayerShape  # noqa: E402
from drivetrain.engines.native.kv.tables import Clear, Copy  # noqa: E402
from drivetrain.engines.sample.sampler import Sampled, Unsampled, sample  # noqa: E402
from on_device.devices import Device  # noqa: E402

WAYS: list[dict[str, Any]] = [
    {}, {"temperature": 0}, {"temperature": 0.7}, {"top_k": 7}, {"top_p": 0.8}, {"min_p": 0.02},
    {"top_k": 40, "top_p": 0.9, "temperature": 1.5}, {"repetition_penalty": 1.3}, {"frequency_penalty": 0.5},
    {"logit_bias": {3: 4.0, 9: -100.0}}, {"suppress_tokens": (1, 2, 3)},
    {"xtc_probability": 0.5, "xtc_threshold": 0.01}, {"xtc_probability": 0.5, "xtc_threshold": 0.01, "min_p": 0.02},
    {"dry_multiplier": 2.0, "dry_allowed_length": 1},
]  # fmt: skip


def row(number: int, sampling: dict[str, Any], logprobs: int | None) -> Any:
    request = EngineRequest(
        request_id=str(number),
        prompt_ids=(1, 5),
        context_length=64,
        max_tokens=4,
        seeds=(number,),
        sampling=Sampling(**sampling),
        logprobs=logprobs,
    )
    return SimpleNamespace(request=request, seed=number, prompt_ids=[1, 5], num_sampled=0, ids=[1, 5], shape=None)


@pytest.mark.parametrize("vocabulary", [300, 50257])
@pytest.mark.parametrize("logprobs", [None, 3])
def test_the_ids_are_those_drawn_on_the_cpu(device: Device, vocabulary: int, logprobs: int | None) -> None:
    logits = 3 * torch.randn(4 * len(WAYS), vocabulary, generator=torch.Generator().manual_seed(1))
    said = []
    for where in ("cpu", device.name):
        rows = [row(number, WAYS[number % len(WAYS)], logprobs) for number in range(len(logits))]
        said.append(sample(logits.to(where, copy=True), rows))
    for here, there in zip(*said, strict=True):
        assert isinstance(here, Sampled)
        assert isinstance(there, Sampled)
        assert there.token_id == here.token_id
        if logprobs is not None:
            assert here.logprobs is not None
            assert there.logprobs is not None
            assert there.logprobs.logprob == pytest.approx(here.logprobs.logprob, abs=1e-4)


def test_a_row_that_is_no_number_fails_alone(device: Device) -> None:
    logits = torch.randn(2, 300, generator=torch.Generator().manual_seed(1))
    logits[1] = torch.nan
    good, bad = sample(logits.to(device.name), [row(0, {"top_p": 0.9}, None), row(1, {"top_p": 0.9}, None)])
    assert isinstance(good, Sampled)
    assert isinstance(bad, Unsampled)
    assert bad.poisoned


def test_the_cache_copies_and_clears_blocks(device: Device) -> None:
    cache = KvCache({0: LayerShape(4, 2, 16, 24)}, 4, dtype=torch.bfloat16, device=torch.device(device.name))
    for tensor in (cache.keys[0], cache.values[0]):
        assert not tensor.any()
        tensor.copy_(torch.arange(tensor.shape[1])[:, None].expand(tensor.shape[1:]))
    cache.apply([Copy(0, 2), Clear(0), Copy(3, 1)])
    for tensor in (cache.keys[0], cache.values[0]):
        first = tensor[0, :, 0].tolist()
        block = list(range(BLOCK_TOKENS))
        last = [3 * BLOCK_TOKENS + i for i in block]
        assert first == [*[0] * BLOCK_TOKENS, *last, *block, *last]

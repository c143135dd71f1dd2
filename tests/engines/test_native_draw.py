"""The draw by blocks is the draw by one running sum. It takes no id without weight, and none beyond the vocabulary."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from drivetrain.core.engine import EngineRequest  # noqa: E402 - it needs torch
from drivetrain.core.errors import EngineFailed, InvalidRequest  # noqa: E402
from drivetrain.core.sampling import Sampling  # noqa: E402
from drivetrain.engines.sample.cutoffs import _invert  # noqa: E402
from drivetrain.engines.sample.sampler import Sampled, Unsampled, sample  # noqa: E402


def plainly(weights: Any, units: Any) -> Any:
    sums = weights.cumsum(-1, dtype=torch.float64)
    return torch.searchsorted(sums, units[:, None] * sums[:, -1:], right=True)[:, 0].clamp_(max=weights.shape[1] - 1)


@pytest.mark.parametrize("width", [3, 256, 1300])
@pytest.mark.parametrize("unit", [0.0, 2.0**-52, 0.25, 1 - 2.0**-52, None])
def test_it_is_the_plain_draw(width: int, unit: float | None) -> None:
    for seed in range(30):
        chance = torch.Generator().manual_seed(seed)
        weights = torch.rand(64, width, generator=chance) ** 8
        weights *= torch.rand(64, width, generator=chance) < 0.1
        weights[:, seed % width] += 1e-9  # no row without any
        units = torch.rand(64, generator=chance, dtype=torch.float64)
        if unit is not None:
            units.fill_(unit)
        ids = _invert(weights, units)
        assert bool((weights.gather(1, ids[:, None]) > 0).all())
        if unit is None:
            assert torch.equal(ids, plainly(weights, units))


@pytest.mark.parametrize("place", [0, 255, 256, 1280, 1299])
@pytest.mark.parametrize("weight", [1e-45, 1.0])
def test_the_only_one_is_taken(place: int, weight: float) -> None:
    weights = torch.zeros(1, 1300)
    weights[0, place] = weight
    for unit in (0.0, 0.5, 1 - 2.0**-52):
        assert _invert(weights, torch.tensor([unit], dtype=torch.float64)).tolist() == [place]


def asking(logprobs: int | None = None, **sampling: Any) -> Any:
    request = EngineRequest(
        request_id="r",
        prompt_ids=(1,),
        context_length=64,
        max_tokens=4,
        seeds=(1,),
        sampling=Sampling(**sampling),
        logprobs=logprobs,
    )
    return SimpleNamespace(request=request, seed=1, prompt_ids=[1], num_sampled=0, ids=[1], shape=None)


@pytest.mark.parametrize("vocabulary", [300, 50257])
@pytest.mark.parametrize("more", [{"top_p": 0.9}, {"logprobs": 2}, {"top_k": 5, "logprobs": 2}])
def test_a_row_that_cannot_be_sampled_fails_alone(vocabulary: int, more: dict[str, Any]) -> None:
    torch.manual_seed(0)
    logits = torch.randn(2, vocabulary)
    logits[1] = torch.nan
    good, bad = sample(logits, [asking(), asking(**more)])
    assert isinstance(good, Sampled)
    assert isinstance(bad, Unsampled)
    assert bad.poisoned
    assert isinstance(bad.error, EngineFailed)
    banned = asking(suppress_tokens=tuple(range(vocabulary)), **more)
    good, bad = sample(torch.randn(2, vocabulary), [asking(), banned])
    assert isinstance(good, Sampled)
    assert isinstance(bad, Unsampled)
    assert isinstance(bad.error, InvalidRequest)
    assert bad.error.param == "suppress_tokens"

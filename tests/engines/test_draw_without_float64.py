"""The draw on a device without float64, as Apple's GPUs are: one that is made up here, of tensors on the CPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402 - it needs torch
from torch.utils._pytree import tree_flatten, tree_map  # noqa: E402 - as above

from drivetrain.core.engine import EngineRequest  # noqa: E402 - as above
from drivetrain.core.errors import LoadFailed  # noqa: E402 - as above
from drivetrain.core.sampling import Sampling  # noqa: E402 - as above
from drivetrain.engines.native.model import selftest  # noqa: E402 - as above
from drivetrain.engines.sample import sampler  # noqa: E402 - as above
from drivetrain.engines.sample.cutoffs import can_draw_on  # noqa: E402 - as above
from drivetrain.engines.sample.sampler import Sampled, sample  # noqa: E402 - as above

APPLE = torch.device("mps", 0)
PARAMETERS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7, "top_p": 0.9},
    {"top_k": 20, "min_p": 0.02},
    {"typical_p": 0.8, "repetition_penalty": 1.3},
    {"xtc_probability": 0.5, "xtc_threshold": 0.01, "dry_multiplier": 0.8},
    {"temperature": 0},
]


class OnApple(torch.Tensor):  # type: ignore[misc, name-defined]  # torch is not typed here
    """A tensor that says it is on an Apple GPU."""

    content: Any

    @staticmethod
    def __new__(cls: Any, content: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, content.shape, dtype=content.dtype, device=APPLE)

    def __init__(self, content: Any) -> None:
        self.content = content

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError("outside of the device")


class AppleGpu(TorchDispatchMode):  # type: ignore[misc]  # as above
    """Runs what is on the device, and refuses what its framework refuses: float64, and tensors of two devices."""

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [one for one in tree_flatten((args, kwargs))[0] if isinstance(one, torch.Tensor)]
        here = [isinstance(one, OnApple) for one in tensors]
        target = kwargs.get("device")
        there = any(here) if target is None else torch.device(target) == APPLE
        if there and target is not None:
            kwargs["device"] = torch.device("cpu")
        if any(here) and not all(here):
            assert all(one.dim() == 0 for one, on_it in zip(tensors, here, strict=True) if not on_it), operation
        args, kwargs = tree_map(lambda one: one.content if isinstance(one, OnApple) else one, (args, kwargs))
        found = operation(*args, **kwargs)
        return tree_map(_arrived, found) if there else found


def _arrived(found: Any) -> Any:
    if not isinstance(found, torch.Tensor):
        return found
    if found.dtype == torch.float64:
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64.")
    return OnApple(found)


@pytest.fixture(autouse=True)
def apple() -> Iterator[None]:
    can_draw_on.cache_clear()
    with AppleGpu():
        yield
    can_draw_on.cache_clear()


def row(seed: int, **sampling: Any) -> Any:
    request = EngineRequest(
        request_id="r", prompt_ids=(1,), context_length=64, max_tokens=4, seeds=(seed,), sampling=Sampling(**sampling)
    )
    return SimpleNamespace(request=request, seed=seed, prompt_ids=[1], num_sampled=0, ids=[1], shape=None)


def ids(logits: Any, rows: list[Any]) -> list[int]:
    outcomes = sample(logits, rows)
    assert all(isinstance(outcome, Sampled) for outcome in outcomes)
    return [outcome.token_id for outcome in outcomes if isinstance(outcome, Sampled)]


def noise(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)) * 2


def test_the_device_is_as_it_should_be() -> None:
    there = noise(3).to(APPLE)
    assert there.device == APPLE
    assert (there + 1).cpu().tolist() == (noise(3) + 1).tolist()
    with pytest.raises(TypeError, match="float64"):
        there.double()
    with pytest.raises(AssertionError):
        there + noise(3)
    assert not can_draw_on(APPLE)
    assert can_draw_on(torch.device("cpu"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_ids_are_those_of_a_cpu(dtype: Any) -> None:
    logits = noise(len(PARAMETERS) * 8, 3000).to(dtype)
    asked = [(seed, sampling) for sampling in PARAMETERS for seed in range(8)]
    wanted = ids(logits.clone(), [row(seed, **sampling) for seed, sampling in asked])
    assert ids(logits.to(APPLE), [row(seed, **sampling) for seed, sampling in asked]) == wanted
    assert len(set(wanted)) > 20  # else the test would prove nothing


def test_ids_come_as_often_as_they_should() -> None:
    """Chi-square, with 15 degrees of freedom: chance passes 37.7 once in a thousand times. The seeds are fixed."""
    logits = noise(1, 16) / 2
    draws = 4000
    counts = Counter(ids(logits.repeat(draws, 1).to(APPLE), [row(seed) for seed in range(draws)]))
    expected = (torch.softmax(logits[0], dim=-1) * draws).tolist()
    assert min(expected) > 5
    assert sum((counts[i] - wanted) ** 2 / wanted for i, wanted in enumerate(expected)) < 37.7


def loaded() -> Any:
    return SimpleNamespace(model=SimpleNamespace(device=APPLE), context_length=64)


def test_the_self_test_draws_there() -> None:
    selftest._check_draw(loaded(), noise(1, 3000).to(APPLE))


def test_a_draw_that_fails_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(logits: Any, units: Any, thresholds: Any) -> Any:
        return logits.to(APPLE).double()

    monkeypatch.setattr(sampler, "draw", fail)
    with pytest.raises(LoadFailed, match=r"drawn on mps:0 \(.*float64.*\); set device cpu"):
        selftest._check_draw(loaded(), noise(1, 3000).to(APPLE))


def test_so_is_one_that_ignores_the_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = noise(1, 3000)
    monkeypatch.setattr(sampler, "draw", lambda logits, units, thresholds: logits.argmin(dim=-1))
    with pytest.raises(LoadFailed, match="do not follow their probabilities"):
        selftest._check_draw(loaded(), logits.to(APPLE))

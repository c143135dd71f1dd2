"""Projections that are done as one say what they said one by one."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from drivetrain.engines.native.cpu.fusing import fuse_projections  # noqa: E402 - it needs torch


def attention(*, bias: bool, key_input: int = 8) -> Any:
    torch.manual_seed(0)
    module = torch.nn.Module()
    module.q_proj = torch.nn.Linear(8, 12, bias=bias)
    module.k_proj = torch.nn.Linear(key_input, 4, bias=bias)
    module.v_proj = torch.nn.Linear(8, 4, bias=bias)
    return module


def said(module: Any, x: Any, order: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(module, name)(x) for name in order}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("order", list(itertools.permutations(("q_proj", "k_proj", "v_proj"))))
def test_every_order_of_calls_says_the_same(bias: bool, order: tuple[str, ...]) -> None:
    module = attention(bias=bias)
    inputs = [torch.randn(3, 8) for _ in range(3)]
    with torch.inference_mode():
        wanted = [said(module, x, order) for x in inputs]
        assert fuse_projections(module) == 2
        for x, plain in zip(inputs, wanted, strict=True):
            for name, value in said(module, x, order).items():
                torch.testing.assert_close(value, plain[name])


def test_a_call_that_others_did_not_follow_leaves_nothing_stale() -> None:
    module = attention(bias=False)
    first, second = torch.randn(2, 8), torch.randn(2, 8)
    with torch.inference_mode():
        wanted = module.k_proj(second), module.q_proj(first)
        fuse_projections(module)
        module.q_proj(first)
        torch.testing.assert_close(module.k_proj(second), wanted[0])
        torch.testing.assert_close(module.q_proj(first), wanted[1])
        torch.testing.assert_close(module.q_proj(first), wanted[1])


def test_weights_and_biases_are_still_to_be_seen() -> None:
    module = attention(bias=True)
    weight, bias = module.k_proj.weight.clone(), module.k_proj.bias.clone()
    fuse_projections(module)
    assert torch.equal(module.k_proj.weight, weight)
    assert torch.equal(module.k_proj.bias, bias)
    assert (module.k_proj.in_features, module.k_proj.out_features) == (8, 4)


@pytest.mark.parametrize("odd", ["input", "bias", "class", "missing"])
def test_layers_that_do_not_fit_together_stay_as_they_are(odd: str) -> None:
    module = attention(bias=True, key_input=4 if odd == "input" else 8)
    if odd == "bias":
        module.v_proj.bias = None
    elif odd == "class":
        module.v_proj = torch.nn.Sequential(module.v_proj)
    elif odd == "missing":
        del module.v_proj
    before = list(module.modules())
    assert fuse_projections(module) == 0
    assert list(module.modules()) == before

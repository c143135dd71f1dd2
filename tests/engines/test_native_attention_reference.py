"""`ReferenceAttention`, which the other backends are held against, finds what is right by definition."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from drivetrain.engines.native.attention.reference import ReferenceAttention  # noqa: E402
from drivetrain.engines.native.kv.cache import LayerShape  # noqa: E402
from on_device.attention_steps import Part, Step, layer_of  # noqa: E402 - it needs torch

PARTS = [
    Part(0, 1), Part(70, 1, shared=4), Part(3, 1), Part(0, 19), Part(33, 5, shared=2), Part(64, 1, shared=4),
    Part(16, 16, shared=1), Part(90, 2),
]  # fmt: skip


def by_definition(step: Step, number: int) -> tuple[Any, Any, Any]:
    """Query by query and head by head, in float64."""
    layer, (query, key, value) = step.layers[number], (x[0].double() for x in step.new[number])
    keys, values = step.keys[number].clone(), step.values[number].clone()
    spec, groups = layer.spec, layer.shape.heads // layer.shape.kv_heads
    found = torch.full((query.shape[1], layer.shape.heads, layer.shape.value_size), math.nan, dtype=torch.float64)
    for index, part in enumerate(step.parts):
        places, ids = step.places(index), step.ids(index)
        keys[:, places[part.first :]] = key[:, ids].to(step.dtype)
        values[:, places[part.first :]] = value[:, ids].to(step.dtype)
        for i in range(part.count):
            position = part.first + i
            lowest = 0 if spec.window is None else max(0, position + 1 - spec.window)
            seen = places[lowest : position + 1]
            for head in range(layer.shape.heads):
                scores = keys[head // groups, seen].double() @ query[head, ids.start + i] * spec.scale
                if spec.softcap is not None:
                    scores = spec.softcap * torch.tanh(scores / spec.softcap)
                if spec.sinks is not None:
                    scores = torch.cat([scores, spec.sinks[head : head + 1].double()])
                weights = torch.softmax(scores, 0)[: len(seen)]
                found[ids.start + i, head] = weights @ values[head // groups, seen].double()
    return found, keys, values


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("window", [None, 1, 20])
@pytest.mark.parametrize("shape", [LayerShape(6, 2, 8, 12), LayerShape(3, 3, 5, 7), LayerShape(7, 1, 16, 16)], ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
def test_the_reference_does_what_is_written(
    shape: LayerShape, window: int | None, softcap: float | None, sinks: bool, dtype: Any, tolerance: float
) -> None:
    weights = torch.linspace(-1, 3, shape.heads) if sinks else None
    layer = layer_of(shape, window=window, softcap=softcap, sinks=weights, scale=0.7)
    step = Step({0: layer}, PARTS, dtype=dtype)
    wanted, *to_be_cached = by_definition(step, 0)
    for grouped in (False, True):
        found, *cached = step.attend(ReferenceAttention, grouped=grouped)[0]
        assert found.dtype is dtype
        torch.testing.assert_close(found[0].double(), wanted, atol=tolerance, rtol=tolerance)
        for one, other in zip(cached, to_be_cached, strict=True):
            torch.testing.assert_close(one, other, atol=0, rtol=0, equal_nan=True)

"""The device's attention finds what `ReferenceAttention` finds there, in steps of any kind and in fixed ones."""

from __future__ import annotations

import random
from functools import partial
from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

from torch.nn.attention import flex_attention as library  # noqa: E402 - it needs torch

from drivetrain.engines.native.attention.flex import FlexAttention  # noqa: E402 - these need torch
from drivetrain.engines.native.attention.reference import ReferenceAttention  # noqa: E402
from drivetrain.engines.native.kv.cache import LayerShape  # noqa: E402
from on_device.attention_steps import Part, Step, layer_of  # noqa: E402
from on_device.devices import Device  # noqa: E402
from on_device.eager_flex import eager_flex, fixed, in_the_middle, places_of  # noqa: E402

pytestmark = pytest.mark.slow

SHAPES = [LayerShape(9, 3, 64, 64), LayerShape(4, 4, 16, 24), LayerShape(8, 1, 128, 256), LayerShape(14, 2, 96, 96)]
TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def same(device: Device, step: Step, *, decodes: bool = False) -> None:
    """Keys and values included."""
    cuda = torch.device(device.name)
    ours = step.attend(fixed(device.attention) if decodes else in_the_middle(device.attention), cuda)
    theirs = step.attend(ReferenceAttention, cuda)
    tolerance = TOLERANCES[step.dtype]
    for number in step.layers:
        (found, *cached), (wanted, *to_be_cached) = ours[number], theirs[number]
        torch.testing.assert_close(found, wanted, atol=tolerance, rtol=tolerance)
        for one, other in zip(cached, to_be_cached, strict=True):
            covered = step.covered().to(cuda)
            assert torch.equal(one[:, covered], other[:, covered])


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_decodes_and_chunks(device: Device, shape: LayerShape, window: int | None, dtype: Any) -> None:
    same(device, Step({0: layer_of(shape, window=window)}, dtype=dtype))


@pytest.mark.parametrize(
    "more", [{"softcap": 2.0}, {"sinks": True}, {"softcap": 2.0, "sinks": True, "window": 20}], ids=str
)
def test_soft_caps_and_sinks(device: Device, more: dict[str, Any]) -> None:
    sinks = torch.linspace(-1, 3, 8, device=device.name) if more.get("sinks") else None
    layers = {0: layer_of(LayerShape(8, 2, 64, 64)), 1: layer_of(LayerShape(8, 2, 64, 64), **{**more, "sinks": sinks})}
    same(device, Step(layers))


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("size", [1, 4, 16])
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[2]], ids=str)
def test_fixed_steps(device: Device, shape: LayerShape, size: int, dtype: Any) -> None:
    chance = random.Random(size)
    parts = [Part(at, 1, chance.randint(0, at // 16)) for at in (chance.randrange(700) for _ in range(size))]
    same(device, Step({0: layer_of(shape), 1: layer_of(shape, window=20)}, parts, dtype=dtype), decodes=True)


@pytest.mark.parametrize("more", [{}, {"window": 20}, {"softcap": 2.0}, {"sinks": True}], ids=str)
def test_what_stands_in_for_the_library_says_what_it_says(more: dict[str, Any]) -> None:
    """Of each row that sees something: its output and the sum of its scores, for decodes and for chunks."""
    sinks = torch.linspace(-1, 3, 8) if more.get("sinks") else None
    step = Step({0: layer_of(LayerShape(8, 2, 64, 64), **{**more, "sinks": sinks})})
    num_rows = 0

    def both(query: Any, keys: Any, values: Any, *, block_mask: Any, **given: Any) -> Any:
        nonlocal num_rows
        found = eager_flex(query, keys, values, block_mask=block_mask, **given)
        for row in range(len(query)):
            places = places_of(block_mask, row)
            if len(places):
                wanted = librarys_own(row, query, keys, values, block_mask, places, given)
                torch.testing.assert_close(of_row(found, row), wanted, atol=1e-5, rtol=1e-5)
                num_rows += 1
        return found

    step.attend(in_the_middle(partial(FlexAttention, flex=both)), torch.device("cpu"))
    assert num_rows > 5


def of_row(found: Any, row: int) -> list[Any]:
    return [each[row : row + 1] for each in ((found[0], found[1].lse) if isinstance(found, tuple) else (found,))]


def librarys_own(
    row: int, query: Any, keys: Any, values: Any, mask: Any, places: Any, given: dict[str, Any]
) -> list[Any]:
    """`flex_attention` itself, of the places that a row reads, in eager mode."""

    def mask_mod(batch: Any, head: Any, i: Any, at: Any) -> Any:
        return mask.mask_mod(batch + row, head, i, places[at])

    whole = library.BlockMask.from_kv_blocks(
        torch.ones(1, 1, 1, dtype=torch.int32),
        torch.zeros(1, 1, 1, 1, dtype=torch.int32),
        BLOCK_SIZE=(mask.BLOCK_SIZE[0], len(places)),
        mask_mod=mask_mod,
        seq_lengths=(query.shape[2], len(places)),
    )
    known = {name: value for name, value in given.items() if name != "kernel_options"}
    with mock.patch.object(library, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True):
        found = library.flex_attention(
            query[row : row + 1], keys[:, :, places], values[:, :, places], block_mask=whole, **known
        )
    return of_row(found, 0)

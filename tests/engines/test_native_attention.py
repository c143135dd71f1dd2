"""Every backend finds what `ReferenceAttention` finds, and leaves the same in the cache."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from own_library import built

torch = pytest.importorskip("torch")

from drivetrain.engines.native.attention import cpu, flex  # noqa: E402
from drivetrain.engines.native.attention.backend import Layer  # noqa: E402
from drivetrain.engines.native.attention.cpu import CpuAttention  # noqa: E402
from drivetrain.engines.native.attention.reference import ReferenceAttention  # noqa: E402
from drivetrain.engines.native.kv.blocks import BLOCK_TOKENS  # noqa: E402
from drivetrain.engines.native.kv.cache import LayerShape  # noqa: E402
from on_device.attention_steps import FAR, PARTS, Backend, Part, Step, layer_of  # noqa: E402 - these need torch
from on_device.eager_flex import FLEX  # noqa: E402

pytestmark = pytest.mark.slow


def our_kernel(folder: Path) -> Backend:
    return partial(CpuAttention, built(cpu.SOURCE, folder))


@dataclass(frozen=True)
class Served:
    make: Callable[[Path], Backend]
    unfit: Callable[..., str]
    device: str


BACKENDS = {"cpu": Served(our_kernel, cpu.unfit, "cpu"), "flex": Served(lambda folder: FLEX, flex.unfit, "cuda")}

SHAPES = [
    LayerShape(9, 3, 64, 64),
    LayerShape(4, 4, 8, 24),
    LayerShape(8, 1, 128, 256),
    LayerShape(14, 2, 96, 96),
    LayerShape(33, 1, 16, 8),
]


def same(step: Step, backend: Backend) -> None:
    ours, theirs = step.attend(backend), step.attend(ReferenceAttention)
    for number in step.layers:
        found, *cached = ours[number]
        wanted, *to_be_cached = theirs[number]
        assert found.shape == wanted.shape
        assert wanted.isfinite().all()
        torch.testing.assert_close(found, wanted, atol=2e-5, rtol=1e-5)
        for one, other in zip(cached, to_be_cached, strict=True):
            behind = one[:, step.behind()]
            assert (behind.isnan() | (behind == 0)).all()
            one[:, step.behind()] = other[:, step.behind()]
            torch.testing.assert_close(one, other, atol=0, rtol=0, equal_nan=True)


@pytest.fixture(scope="module", params=BACKENDS)
def served(request: pytest.FixtureRequest) -> Served:
    return BACKENDS[request.param]


@pytest.fixture(scope="module")
def backend(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Backend:
    """Made once, and not by others before."""
    return served.make(tmp_path_factory.mktemp("compiled"))


# Each backend against the reference


@pytest.mark.parametrize("window", [None, 1, 16, 1500, 10_000])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_is_the_same(backend: Backend, shape: LayerShape, window: int | None) -> None:
    same(Step({0: layer_of(shape, window=window)}), backend)


def test_each_layer_has_its_own_shape_and_window(backend: Backend) -> None:
    layers = {3: layer_of(SHAPES[0]), 4: layer_of(SHAPES[1], window=20, scale=0.5), 9: layer_of(SHAPES[0], window=3)}
    same(Step(layers), backend)


def test_what_is_behind_a_window_is_not_looked_for(backend: Backend) -> None:
    layers = {3: layer_of(SHAPES[0]), 4: layer_of(SHAPES[1], window=20), 5: layer_of(SHAPES[0], window=300)}
    step = Step(layers)
    found, wanted = step.attend(backend), step.attend(ReferenceAttention, grouped=False)
    for number in layers:
        torch.testing.assert_close(found[number][0], wanted[number][0], atol=2e-5, rtol=1e-5)


@st.composite
def layers_drawn(draw: st.DrawFn) -> dict[int, Layer]:
    kv_heads, groups = draw(st.integers(1, 5)), draw(st.integers(1, 9))
    sizes = [draw(st.integers(1, 12)) * draw(st.sampled_from([8, 8, 8, 8, 1])) for _ in range(2)]
    shape = LayerShape(kv_heads * groups, kv_heads, *sizes)
    window, scale = draw(st.none() | st.integers(1, 80)), draw(st.floats(0.01, 1))
    softcap = draw(st.sampled_from([None, None, None, 2.0]))
    sinks = draw(st.sampled_from([None, None, None, torch.linspace(-1, 3, shape.heads)]))
    return {0: layer_of(shape, window=window, scale=scale, softcap=softcap, sinks=sinks)}


@st.composite
def parts_drawn(draw: st.DrawFn) -> list[Part]:
    """Some decodes, some chunks, some with nothing to do; each behind so much of the common beginning as it has."""
    made = []
    for _ in range(draw(st.integers(1, 8))):
        first = draw(st.integers(0, 150))
        count = draw(st.sampled_from([1, 1, 1, 0]) | st.integers(2, 70))
        made.append(Part(first, count, draw(st.integers(0, first // BLOCK_TOKENS))))
    return [part if part.first + part.count else Part(0, 1) for part in made]


@given(layers=layers_drawn(), parts=parts_drawn(), seed=st.integers(0, 1000))
@settings(max_examples=200)
def test_any_shape_that_it_serves(
    served: Served, backend: Backend, layers: dict[int, Layer], parts: list[Part], seed: int
) -> None:
    device = torch.device(served.device)
    if any(part.count for part in parts) and not served.unfit(layers, device, torch.float32):
        same(Step(layers, parts, seed=seed), backend)


def test_large_scores_leave_one_key_and_no_overflow(backend: Backend) -> None:
    step = Step({0: layer_of(SHAPES[0])})
    step.new[0][0] = step.new[0][0] * 1000
    torch.testing.assert_close(step.attended(backend), step.attended(ReferenceAttention), atol=2e-3, rtol=1e-2)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("what", ["keys", "values"])
@pytest.mark.parametrize("window", [None, 300])
def test_what_is_no_number_is_seen_by_its_own_sequence_and_by_no_other(
    backend: Backend, what: str, bad: float, window: int | None
) -> None:
    step = Step({0: layer_of(SHAPES[0], window=window)})
    sound = step.attended(backend)
    place = step.places(FAR)[PARTS[FAR].first - 100]
    getattr(step, what)[0][:, place] = bad
    found, own = step.attended(backend), step.ids(FAR)
    assert not found[:, own].isfinite().any(-1).any()
    found[:, own] = sound[:, own]
    assert torch.equal(found, sound)


def test_what_is_no_number_is_seen_by_all_who_share_it(backend: Backend) -> None:
    step = Step({0: layer_of(SHAPES[0])})
    sound = step.attended(backend)
    step.values[0][:, step.places(FAR)[20 * BLOCK_TOKENS + 3]] = math.nan
    found = step.attended(backend)
    for index, part in enumerate(PARTS):
        mine = found[:, step.ids(index)]
        assert mine.isnan().all() if part.shared > 20 else torch.equal(mine, sound[:, step.ids(index)])


def test_what_is_new_and_no_number_stays_with_its_own_sequence(backend: Backend) -> None:
    step = Step({0: layer_of(SHAPES[0])})
    sound = step.attended(backend)
    own = step.ids(FAR)
    step.new[0][1][:, :, own.start + 3] = math.nan
    found = step.attended(backend)
    assert found[:, own][:, 3:].isnan().all()
    found[:, own] = sound[:, own]
    assert torch.equal(found, sound)


def test_the_company_has_no_part_in_it(backend: Backend) -> None:
    step = Step({0: layer_of(SHAPES[0])})
    together = step.attended(backend)
    order = list(range(len(PARTS)))
    random.Random(1).shuffle(order)
    for some in (order, order[:4], *([index] for index in order)):
        assert torch.equal(step.taken(some).attended(backend), together[:, step.row(some)])


def test_the_places_of_the_blocks_have_no_part_in_it(backend: Backend) -> None:
    step = Step({0: layer_of(SHAPES[0], window=1500)})
    assert torch.equal(step.elsewhere().attended(backend), step.attended(backend))


def test_a_piece_without_ids_is_nothing(backend: Backend) -> None:
    step = Step({0: layer_of(SHAPES[0])}, [*PARTS, Part(40, 0, shared=2), Part(0, 0)])
    some = list(range(len(PARTS)))
    wanted = step.taken(some).attended(backend)
    assert torch.equal(step.attended(backend), wanted)
    assert torch.equal(step.taken([*some[:4], len(PARTS), len(PARTS) + 1, *some[4:]]).attended(backend), wanted)


# What our kernel does not do


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("served", ["cpu"], indirect=True)
def test_another_type_is_refused(backend: Backend, which: int) -> None:
    step = Step({0: layer_of(SHAPES[0])})
    step.new[0][which] = step.new[0][which].double()
    with pytest.raises(TypeError, match="float32"):
        step.attend(backend)


@pytest.mark.parametrize(
    ("layer", "device", "dtype", "why"),
    [
        (layer_of(SHAPES[0]), "cpu", torch.float32, ""),
        (layer_of(LayerShape(4, 4, 256, 8), window=9), "cpu", torch.float32, ""),
        (layer_of(LayerShape(4, 4, 20, 24)), "cpu", torch.float32, "multiples of 8"),
        (layer_of(LayerShape(4, 4, 24, 20)), "cpu", torch.float32, "multiples of 8"),
        (layer_of(LayerShape(4, 4, 64, 264)), "cpu", torch.float32, "up to 256"),
        (layer_of(LayerShape(4, 4, 264, 64)), "cpu", torch.float32, "up to 256"),
        (layer_of(SHAPES[0], softcap=50.0), "cpu", torch.float32, "no soft cap"),
        (layer_of(SHAPES[0], sinks=torch.zeros(9)), "cpu", torch.float32, "no sinks"),
        (layer_of(SHAPES[0]), "cpu", torch.bfloat16, "float32 on a CPU"),
        (layer_of(SHAPES[0]), "cpu", torch.float64, "float32 on a CPU"),
        (layer_of(SHAPES[0]), "cuda", torch.float32, "float32 on a CPU"),
    ],
)
def test_what_our_kernel_serves(layer: Layer, device: str, dtype: Any, why: str) -> None:
    """One layer that it does not serve is enough."""
    layers = {0: layer_of(SHAPES[1]), 1: layer}
    found = cpu.unfit(layers, torch.device(device), dtype)
    assert why in found
    assert bool(why) == bool(found)


# What torch's flex_attention does not do


@pytest.mark.parametrize(
    ("layer", "device", "dtype", "why"),
    [
        (layer_of(SHAPES[0], window=9, softcap=2.0, sinks=torch.zeros(9)), "cuda", torch.bfloat16, ""),
        (layer_of(LayerShape(4, 4, 17, 256)), "cuda", torch.float16, ""),
        (layer_of(LayerShape(4, 4, 8, 64)), "cuda", torch.float32, "16 to 256"),
        (layer_of(LayerShape(4, 4, 64, 8)), "cuda", torch.float32, "16 to 256"),
        (layer_of(LayerShape(4, 4, 264, 64)), "cuda", torch.float32, "16 to 256"),
        (layer_of(SHAPES[0]), "cuda", torch.float64, "on CUDA"),
        (layer_of(SHAPES[0]), "cpu", torch.float32, "on CUDA"),
    ],
)
def test_what_flex_attention_serves(layer: Layer, device: str, dtype: Any, why: str) -> None:
    found = flex.unfit({0: layer_of(SHAPES[0]), 1: layer}, torch.device(device), dtype)
    assert why in found
    assert bool(why) == bool(found)


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("window", [None, 1, 20])
@pytest.mark.parametrize(
    "shape", [LayerShape(6, 2, 16, 24), LayerShape(3, 3, 17, 31), LayerShape(7, 1, 64, 64)], ids=str
)
def test_flex_attention_does_soft_caps_and_sinks(
    shape: LayerShape, window: int | None, softcap: float | None, sinks: bool
) -> None:
    weights = torch.linspace(-1, 3, shape.heads) if sinks else None
    same(Step({0: layer_of(shape, window=window, softcap=softcap, sinks=weights, scale=0.7)}), FLEX)

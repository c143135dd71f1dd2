"""Our attention in C++ finds what the one by operations of torch finds, and leaves the same in the cache."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from drivetrain.engines.native.attention.batch import Chunk, PackedBatch  # noqa: E402
from drivetrain.engines.native.attention.kernel import Kernel, build, can_attend  # noqa: E402
from drivetrain.engines.native.attention.layers import AttentionSpec, AttentionStage  # noqa: E402
from drivetrain.engines.native.kv.cache import LayerShape, RowSegment  # noqa: E402 - it needs torch

pytestmark = pytest.mark.slow

PIECES = [  # segment, row, first, count; in one row, a sequence
    (0, 2, 0, 1), (0, 0, 5, 1), (0, 1, 127, 1), (1, 3, 0, 37), (1, 1, 200, 17), (2, 0, 2500, 9), (1, 0, 1023, 2),
    (2, 1, 3000, 1), (1, 2, 63, 64),
]  # fmt: skip
CAPACITIES = (128, 1100, 3100)
SHAPES = [
    LayerShape(9, 3, 64, 64),
    LayerShape(4, 4, 8, 24),
    LayerShape(8, 1, 128, 256),
    LayerShape(14, 2, 96, 96),
    LayerShape(33, 1, 16, 8),
]


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    from torch._inductor import config

    with pytest.MonkeyPatch.context() as patch, config.patch({"cpp.cxx": (None, "g++")}):  # it read CXX when imported
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("compiled")))
        return Kernel(build())


class Both:
    """The same pieces, ids and cache, for either attention."""

    def __init__(self, shape: LayerShape, window: int | None = None) -> None:
        torch.manual_seed(7)
        self.shape = shape
        self.spec = AttentionSpec(scale=shape.key_size**-0.5, window=window, softcap=None, sinks=None)
        self.keys = [torch.randn(4, shape.kv_heads, capacity, shape.key_size) for capacity in CAPACITIES]
        self.values = [torch.randn(4, shape.kv_heads, capacity, shape.value_size) for capacity in CAPACITIES]
        num_ids = sum(count for *_, count in PIECES)
        self.query = torch.randn(1, num_ids, shape.heads, shape.key_size).transpose(1, 2)
        self.key = torch.randn(1, num_ids, shape.kv_heads, 2 * shape.key_size)[..., ::2].transpose(1, 2)
        self.value = torch.randn(1, shape.kv_heads, num_ids, shape.value_size)

    def attend(self, kernel: Kernel | None) -> list[Any]:
        """What is found, and the cache afterwards."""
        segments = [
            RowSegment(capacity, 0, 4, {0: keys.clone()}, {0: values.clone()})
            for capacity, keys, values in zip(CAPACITIES, self.keys, self.values, strict=True)
        ]
        chunks, at = [], 0
        for segment, row, first, count in PIECES:
            chunks.append(Chunk(segments[segment], row, at, at + count, first))
            at += count
        stage = AttentionStage()
        stage.specs[0] = self.spec
        stage.kernel = kernel
        stage.batch = PackedBatch([], None, None, None, [], chunks)
        found = stage.attend(0, self.query, self.key, self.value)
        return [found, *[block[0] for segment in segments for block in (segment.keys, segment.values)]]


@pytest.mark.parametrize("window", [None, 1, 16, 1500, 10_000])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_is_the_same(kernel: Kernel, shape: LayerShape, window: int | None) -> None:
    both = Both(shape, window)
    found, *cached = both.attend(kernel)
    wanted, *to_be_cached = both.attend(None)
    assert found.shape == wanted.shape
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=1e-5)
    assert all(torch.equal(one, other) for one, other in zip(cached, to_be_cached, strict=True))


def test_large_scores_leave_one_key_and_no_overflow(kernel: Kernel) -> None:
    both = Both(SHAPES[0])
    both.query = both.query * 1000
    torch.testing.assert_close(both.attend(kernel)[0], both.attend(None)[0], atol=2e-3, rtol=1e-2)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("what", ["keys", "values"])
def test_what_is_no_number_is_seen_by_its_own_sequence_and_by_no_other(kernel: Kernel, what: str, bad: float) -> None:
    both = Both(SHAPES[0])
    sound = both.attend(kernel)[0]
    segment, row, first, count = PIECES[5]
    getattr(both, what)[segment][row, :, first - 100] = bad
    found = both.attend(kernel)[0]
    start = sum(count for *_, count in PIECES[:5])
    assert not found[:, start : start + count].isfinite().any(-1).any()
    found[:, start : start + count] = sound[:, start : start + count]
    assert torch.equal(found, sound)


def test_the_company_has_no_part_in_it(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    both = Both(SHAPES[0])
    together = both.attend(kernel)[0]
    order = list(range(len(PIECES)))
    random.Random(1).shuffle(order)
    starts = [sum(count for *_, count in PIECES[:n]) for n in range(len(PIECES))]
    ids = [starts[n] + i for n in order for i in range(PIECES[n][3])]
    both.query, both.key, both.value = (x[:, :, ids] for x in (both.query, both.key, both.value))
    monkeypatch.setattr(f"{__name__}.PIECES", [PIECES[n] for n in order])
    assert torch.equal(both.attend(kernel)[0], together[:, ids])


def test_a_piece_without_ids_is_nothing(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    both = Both(SHAPES[0])
    wanted = both.attend(kernel)[0]
    monkeypatch.setattr(f"{__name__}.PIECES", [*PIECES[:4], (0, 3, 2, 0), *PIECES[4:]])
    assert torch.equal(both.attend(kernel)[0], wanted)


def test_another_type_is_refused(kernel: Kernel) -> None:
    both = Both(SHAPES[0])
    both.query = both.query.double()
    with pytest.raises(TypeError, match="float32"):
        both.attend(kernel)


def test_which_layers_it_can_do() -> None:
    assert can_attend(SHAPES)
    assert not can_attend([*SHAPES, LayerShape(4, 4, 20, 24)])
    assert not can_attend([LayerShape(4, 4, 64, 264)])


def test_a_class_that_asks_for_more_stays_with_torch() -> None:
    stage = AttentionStage()
    stage.shapes[0] = stage.shapes[1] = SHAPES[0]
    stage.specs[0] = AttentionSpec(scale=1.0, window=None, softcap=None, sinks=None)
    stage.specs[1] = AttentionSpec(scale=1.0, window=None, softcap=50.0, sinks=None)
    assert not stage.fits_kernel
    del stage.specs[1]
    assert stage.fits_kernel

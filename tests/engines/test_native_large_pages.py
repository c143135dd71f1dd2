"""Memory for the weights in large pages."""

from __future__ import annotations

import gc
import mmap
from itertools import pairwise
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from drivetrain.engines.native.cpu.large_pages import AT_ONCE, LINE, LargePages  # noqa: E402 - it needs torch


def test_tensors_lie_one_after_the_other_and_each_begins_with_a_line() -> None:
    pages = LargePages()
    shapes = [(3, 5), (1,), (0, 7), (70, 33), (AT_ONCE // 4 - 64,), (2, AT_ONCE // 4)]
    dtypes = [torch.float32, torch.int8, torch.float32, torch.int8, torch.float32, torch.float32]
    tensors = [pages.empty(*shape, dtype=dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    assert [tuple(t.shape) for t in tensors] == shapes
    assert [t.dtype for t in tensors] == dtypes
    for number, tensor in enumerate(tensors):
        assert tensor.is_contiguous()
        assert tensor.data_ptr() % LINE == 0
        tensor.fill_(number)
    assert all(bool((tensor == number).all()) for number, tensor in enumerate(tensors))
    parts = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for t in tensors if t.numel())
    assert all(end <= begin for (_, end), (begin, _) in pairwise(parts))


def test_the_memory_goes_with_the_last_tensor() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    pages = LargePages()
    kept, dropped = (pages.empty(AT_ONCE // 8, dtype=torch.float32) for _ in range(2))
    kept.fill_(1)
    dropped.fill_(2)
    held = resident()
    del pages, dropped
    gc.collect()
    assert float(kept.sum()) == AT_ONCE // 8
    del kept
    gc.collect()
    assert resident() < held - 3 * AT_ONCE // 4


@pytest.mark.parametrize("obstacle", ["not known here", "not built into the system"])
def test_without_large_pages_there_are_small_ones(monkeypatch: pytest.MonkeyPatch, obstacle: str) -> None:
    if obstacle == "not known here":
        monkeypatch.delattr(mmap, "MADV_HUGEPAGE")
    else:
        monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 12345)
    tensor = LargePages().empty(4, 6, dtype=torch.float32)
    assert float(tensor.fill_(2).sum()) == 48

"""Memory for the weights in large pages."""

from __future__ import annotations

import ctypes
import gc
import mmap
import platform
from itertools import pairwise
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from drivetrain.engines.native.cpu.large_pages import AT_ONCE, LINE, LargePages  # noqa: E402 - it needs torch
from drivetrain.engines.native.pages import give_back_free  # noqa: E402


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


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_the_memory_goes_with_the_last_tensor() -> None:
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


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have their own rules")
def test_what_was_freed_goes_back_to_the_system() -> None:
    small = [torch.ones(16_000) for _ in range(2000)]
    last = small.pop()  # above all others on the heap, which so cannot shrink from its end
    held = resident()
    del small
    gc.collect()
    give_back_free()
    assert resident() < held - 2000 * 16_000 * 4 * 0.8
    assert float(last.sum()) == 16_000


def test_where_nothing_can_be_given_back_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    give_back_free()

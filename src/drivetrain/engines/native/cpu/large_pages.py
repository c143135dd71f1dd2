"""Memory in large pages, where the system has them, for what is read whole in each step."""

from __future__ import annotations

import contextlib
import mmap
from math import prod
from typing import Any

import torch

from drivetrain.engines.native import pages

AT_ONCE = 64 << 20
"""Bytes that are asked for together, so that small tensors do not end in small pages."""
LINE = 64
"""Bytes of a line of the processor's caches; a tensor begins with one."""


class LargePages:
    """Room for tensors, one after the other."""

    def __init__(self) -> None:
        self._left: Any = torch.empty(0, dtype=torch.uint8)

    def empty(self, *shape: int, dtype: Any) -> Any:
        """As `torch.empty`. The memory goes with the last tensor in it."""
        if not hasattr(mmap, "MADV_HUGEPAGE"):
            return torch.empty(shape, dtype=dtype)
        num_bytes = prod(shape) * dtype.itemsize
        if len(self._left) < num_bytes:
            self._left = _asked_for(max(num_bytes, AT_ONCE))
        taken, self._left = self._left[:num_bytes], self._left[-(-num_bytes // LINE) * LINE :]
        return taken.view(dtype).view(shape)


def _asked_for(num_bytes: int) -> Any:
    mapping = pages.zeroed(num_bytes)
    with contextlib.suppress(OSError):  # a system that was built without them
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(mapping, dtype=torch.uint8)

"""Memory in large pages, where the system has them, for what is read whole in each step."""

from __future__ import annotations

import contextlib
import mmap
from math import prod
from typing import Any

import torch

from drivetrain.engines.native import pages

AT_ONCE = 16 << 20
"""Numbers that are asked for together, so that small tensors do not end in small pages."""
LINE = 16
"""Numbers of a line of the processor's caches; a tensor begins with one."""


class LargePages:
    """Room for tensors of float32, one after the other."""

    def __init__(self) -> None:
        self._left: Any = torch.empty(0)

    def empty(self, *shape: int) -> Any:
        """As `torch.empty`. The memory goes with the last tensor in it."""
        if not hasattr(mmap, "MADV_HUGEPAGE"):
            return torch.empty(shape, dtype=torch.float32)
        count = prod(shape)
        if len(self._left) < count:
            self._left = _asked_for(max(count, AT_ONCE))
        taken, self._left = self._left[:count], self._left[-(-count // LINE) * LINE :]
        return taken.view(shape)


def _asked_for(count: int) -> Any:
    mapping = pages.zeroed(count * torch.float32.itemsize)
    with contextlib.suppress(OSError):  # a system that was built without them
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(mapping, dtype=torch.float32)

"""Memory mapped from the system, outside the heap."""

from __future__ import annotations

import mmap


def zeroed(num_bytes: int) -> mmap.mmap:
    """Zeros that take memory page by page, as they are written. Not on Windows."""
    return mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

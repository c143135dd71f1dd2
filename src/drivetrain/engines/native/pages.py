"""Memory of the system's, outside the heap."""

from __future__ import annotations

import mmap


def zeroed(num_bytes: int) -> mmap.mmap:
    """Pages that the system provides as they are written. Not on Windows."""
    return mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

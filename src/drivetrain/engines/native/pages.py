"""Memory mapped from the system, and returning what the heap no longer uses."""

from __future__ import annotations

import contextlib
import ctypes
import mmap


def zeroed(num_bytes: int) -> mmap.mmap:
    """Zeros that take memory page by page, as they are written. Not on Windows."""
    return mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def give_back_free() -> None:
    """Return freed memory to the system. glibc would keep it: hundreds of MB after laying out weights."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another system's library
        ctypes.CDLL(None).malloc_trim(0)

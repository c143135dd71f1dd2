"""Memory of the system's: mapped outside the heap, and what the heap gives back."""

from __future__ import annotations

import contextlib
import ctypes
import mmap


def zeroed(num_bytes: int) -> mmap.mmap:
    """Zeros that take memory page by page, as they are written. Not on Windows."""
    return mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def give_back_free() -> None:
    """What was freed and is in no use: glibc keeps it else, which after laying out weights are hundreds of MB."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another system's library
        ctypes.CDLL(None).malloc_trim(0)

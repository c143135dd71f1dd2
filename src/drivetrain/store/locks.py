"""A lock between processes (and threads): a file that the operating system unlocks when its holder dies."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

POLL_S = 0.1


@contextmanager
def locked(
    path: Path, on_wait: Callable[[float], None] | None = None, sleep: Callable[[float], object] = time.sleep
) -> Iterator[None]:
    """Hold the lock. While another holds it, `on_wait` is called about once a second with the seconds waited.

    Not reentrant: a thread that holds it and asks again waits for itself.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    polls = 0
    while (descriptor := _try(path)) is None:
        if on_wait is not None and polls % round(1 / POLL_S) == 0:
            on_wait(polls * POLL_S)
        polls += 1
        sleep(POLL_S)
    try:
        yield
    finally:
        _release(descriptor, path)


@contextmanager
def locked_if_free(path: Path) -> Iterator[bool]:
    """Hold the lock if it is free; yields whether it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = _try(path)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            _release(descriptor, path)


def _try(path: Path) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if _try_lock(descriptor) and _is_current(descriptor, path):
            return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _release(descriptor: int, path: Path) -> None:
    # Deleted while still held: whoever waits sees that its file is no longer the one at `path`.
    with suppress(OSError):
        path.unlink()
    os.close(descriptor)


def _is_current(descriptor: int, path: Path) -> bool:
    """Whether the locked file is still the one that others would open."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


if sys.platform == "win32":
    import msvcrt

    def _try_lock(descriptor: int) -> bool:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _try_lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

"""How many threads llama.cpp's process takes: decided here while it computes, and told through shared memory."""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from drivetrain.core.results import ComputeThreads
from drivetrain.engines.base.cores import CoreTimes, process_time_of, read_core_times
from drivetrain.engines.base.thread_limit import WINDOW_S, ThreadLimit


class SharedNumber:
    """Of 32 bits, in an unnamed file that a child inherits."""

    def __init__(self, file: int, number: int) -> None:
        self.file = file
        self.first = number
        os.ftruncate(file, mmap.PAGESIZE)
        self._memory = mmap.mmap(file, mmap.PAGESIZE)
        self._number = ctypes.c_uint32.from_buffer(self._memory)
        self.set(number)

    @classmethod
    def made(cls, number: int) -> SharedNumber | None:
        """None where there are no such files."""
        try:
            file = os.memfd_create("drivetrain-threads")
        except (AttributeError, OSError):
            return None
        try:
            return cls(file, number)
        except OSError:
            os.close(file)
            return None

    def set(self, number: int) -> None:
        self._number.value = number

    def close(self) -> None:
        """Idempotent. `set` has no effect on anybody afterwards."""
        file, self.file = self.file, -1
        if file >= 0:
            os.close(file)


class Pace:
    """Looks at the cores while anything is computed, and never else. All methods run on the event loop."""

    def __init__(self, limit: SharedNumber, pid: int) -> None:
        """`limit` has the most threads to take."""
        self._shared = limit
        self._pid = pid
        self._limit = ThreadLimit(limit.first, read=self._times)
        self._at_work = 0
        self._next: asyncio.TimerHandle | None = None

    @property
    def threads(self) -> ComputeThreads:
        return self._limit.threads

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Something is; several may be at once."""
        self._at_work += 1
        if self._at_work == 1:
            self._limit.begin()
            self._look()
        try:
            yield
        finally:
            self._at_work -= 1
            if not self._at_work:
                self._limit.pause()
                assert self._next is not None
                self._next.cancel()

    def _look(self) -> None:
        self._shared.set(self._limit.look())
        self._next = asyncio.get_running_loop().call_later(WINDOW_S, self._look)

    def _times(self) -> CoreTimes | None:
        """What the event loop does for these requests is no neighbour's work; what other models compute is."""
        return read_core_times(lambda: process_time_of(self._pid) + time.thread_time())

"""How much memory there is and is used: the host's own figures, and averages over a worker's life."""

from __future__ import annotations

import functools
import gc
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from drivetrain.core.results import DeviceMemory
from drivetrain.telemetry.control_groups import PROC, control_groups

_log = logging.getLogger(__name__)

_FILES = {
    ("memory.max", "memory.current", "memory.stat"): b"inactive_file ",
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat"): b"total_inactive_file ",
}
NO_LIMIT = 2**60
"""The first version of control groups says a number where there is none."""

MEMORY_AGE_S = 0.1
"""How old figures may be: asking the system takes as long as ten tokens, and asking a GPU's driver longer."""


def host_memory(pid: int | None = None, device: str = "cpu") -> DeviceMemory:
    """This process on the host, or another; in a container with a limit, on what that grants. Where the system does
    not tell, a figure is 0."""
    total = available = 0
    try:
        with open("/proc/meminfo", "rb", buffering=0) as file:
            lines = dict(line.split(b":", 1) for line in file.read(256).splitlines() if b":" in line)
        total = int(lines[b"MemTotal"].split()[0]) * 1024
        available = int(lines[b"MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, IndexError, ValueError):
        total = _physical()
    for limit, left in _granted():
        total, available = min(total, limit) if total else limit, min(available, left) if available else left
    return DeviceMemory(device, _resident(pid), 0, total, available)


def _granted(proc: Path = PROC) -> Iterator[tuple[int, int]]:
    """What each control group with a limit grants, and what is left of it. Pages of files that nobody uses give way."""
    for limit_file, used_file, stat_file, idle in _limited_groups(proc):
        with suppress(OSError, ValueError, StopIteration):
            limit, used = int(limit_file.read_bytes()), int(used_file.read_bytes())
            spare = next(int(line.split()[1]) for line in stat_file.read_bytes().splitlines() if line.startswith(idle))
            yield limit, max(0, limit - max(0, used - spare))


@functools.cache
def _limited_groups(proc: Path) -> tuple[tuple[Path, Path, Path, bytes], ...]:
    """The files of those groups, in either version: the limit, what is used, and more figures with the name of one."""
    found = []
    for group in control_groups("memory", proc):
        for names, idle in _FILES.items():
            limit, used, stat = (group / name for name in names)
            with suppress(OSError, ValueError):
                if 0 < int(limit.read_bytes()) < NO_LIMIT:
                    found.append((limit, used, stat, idle))
    return tuple(found)


def _resident(pid: int | None) -> int:
    try:
        with open(f"/proc/{pid or 'self'}/statm", "rb", buffering=0) as file:
            return max(0, int(file.read(128).split()[1])) * os.sysconf("SC_PAGE_SIZE")  # a system's own sums can dip
    except (OSError, ValueError, IndexError):
        if pid is not None:
            return 0
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def _physical() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return 0


GROWTH = 500_000
"""Objects, more than the libraries of a model bring."""

_USUAL = gc.get_threshold()


@contextmanager
def growing_heap() -> Iterator[None]:
    """Hardly any collections until `settle_heap`: nearly all that imports and loading make stays, and to walk it again
    and again takes a sixth of their time."""
    gc.set_threshold(GROWTH)
    try:
        yield
    finally:
        gc.set_threshold(*_USUAL)


def settle_heap() -> None:
    """What is there now stays: what has gone is freed, and no collection during a stream has to look at the rest.

    A collection walks every object that Python knows; with a model's library loaded that stops the event loop for
    longer than a token takes.
    """
    gc.set_threshold(*_USUAL)
    gc.unfreeze()
    gc.collect()
    gc.freeze()


class RecentMemory:
    """The host's memory and that of an engine's devices, asked for again when the figures are `MEMORY_AGE_S` old."""

    def __init__(self, devices: Callable[[], Sequence[DeviceMemory]]) -> None:
        self._devices = devices
        self._read: tuple[DeviceMemory, ...] = ()
        self._read_at = -MEMORY_AGE_S

    def now(self) -> tuple[DeviceMemory, ...]:
        """A broken device cannot report its memory; that must not hide how a request ended."""
        now = time.monotonic()
        if now - self._read_at > MEMORY_AGE_S:
            self._read_at = now
            read: tuple[DeviceMemory, ...] = ()
            try:
                read = (host_memory(), *self._devices())
            except Exception:  # noqa: BLE001 - any error of a library; it is logged, and the request ends normally
                _log.exception("cannot read the device's memory")
            self._read = read
        return self._read


class MemoryAverage:
    """A running mean per device, one sample an ended request."""

    def __init__(self) -> None:
        self._samples = 0
        self._mean: dict[str, tuple[float, float, float]] = {}
        self._latest: dict[str, DeviceMemory] = {}

    def add(self, now: tuple[DeviceMemory, ...]) -> tuple[DeviceMemory, ...]:
        """Take a sample and return the averages."""
        self._samples += 1
        for memory in now:
            sample = (memory.allocated_bytes, memory.cached_bytes, memory.available_bytes)
            mean = self._mean.get(memory.device, sample)
            a, c, f = (m + (s - m) / self._samples for m, s in zip(mean, sample, strict=True))
            self._mean[memory.device] = (a, c, f)
            self._latest[memory.device] = replace(
                memory, allocated_bytes=round(a), cached_bytes=round(c), available_bytes=round(f)
            )
        return tuple(self._latest.values())

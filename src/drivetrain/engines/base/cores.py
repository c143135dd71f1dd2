"""How busy the cores are that this process may use."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

_STAT = "/proc/stat"

_BUSY = (1, 2, 3, 6, 7, 8)
"""Columns of a core's line: user, nice, system, irq, softirq, steal. What a hypervisor took is part of how long our own
threads seem to have run, so it must be in both."""


@dataclass(frozen=True, slots=True)
class CoreTimes:
    """Seconds of processor time since some moment: of our cores, by anybody, and of those who compute here."""

    busy_s: float
    own_s: float


def read_core_times(own: Callable[[], float] = time.process_time) -> CoreTimes | None:
    """`own` says how long those who compute have run; it raises `OSError` if they are gone.

    None: that, or this system does not say how busy its cores are.
    """
    try:
        cores = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        with open(_STAT, "rb", buffering=0) as file:
            lines = file.read(1 << 16).decode("ascii").split("\n")
        rows = [fields for line in lines if (fields := line.split())[:1] and fields[0] in cores]
        ticks = sum(int(fields[column]) for fields in rows for column in _BUSY)
        if len(rows) != len(cores):  # a container's own view, with other numbers, says nothing about our cores
            return None
        return CoreTimes(ticks / os.sysconf("SC_CLK_TCK"), own())
    except (AttributeError, OSError, ValueError, IndexError):
        return None


def process_time_of(pid: int) -> float:
    """Of another process of this system, in seconds, as `time.process_time` for this one. Raises `OSError`."""
    return time.clock_gettime((~pid << 3) | 2)  # CPUCLOCK_SCHED, as clock_getcpuclockid(3) makes it

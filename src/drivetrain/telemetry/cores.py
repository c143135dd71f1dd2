"""How many cores there are for this process: the machine's, those it is bound to, and what its control groups grant.

A container with a quota of processor time sees every core of its machine. Threads for all of them use the quota up
early in each period, and then all stand still to its end.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from drivetrain.telemetry.control_groups import PROC, control_groups

_PROCESSORS = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, slots=True)
class Cores:
    """`quota` counts cores as well: 1.5 is 150 ms of processor time in each 100 ms. None: as much as there is."""

    machine: int
    bound: int
    quota: float | None

    @property
    def usable(self) -> int:
        """Threads that compute at once and never wait for the quota. Half a core counts for none; one there always is.

        In a quota of 1.5, two threads stand still for a quarter of the time, all at once: on a busy machine the longest
        gaps between two tokens were some 1.5 to 2 times those with one thread, and the rates about the same.
        """
        return self.bound if self.quota is None else max(1, min(self.bound, math.floor(self.quota)))


def usable_cores() -> int:
    return cores().usable


def cores() -> Cores:
    """As it is now: a quota may be changed while we run."""
    return Cores(os.cpu_count() or 1, bound_cores(), cpu_quota())


def bound_cores() -> int:
    """Those on which this process may run, whatever its quota."""
    return len(bound_processors() or ()) or os.cpu_count() or 1


def fewer_than(threads: int) -> int | None:
    """The usable cores, where they are fewer than the threads that a library would take by itself."""
    usable = usable_cores()
    return usable if usable < threads else None


def physical_cores(processors: Collection[int] | None = None, folder: Path = _PROCESSORS) -> int:
    """The cores behind these processors, of which two may share one; behind all of the machine, if none are named."""
    names = ["[0-9]*"] if processors is None else [str(number) for number in processors]
    try:
        files = [file for name in names for file in folder.glob(f"cpu{name}/topology/thread_siblings_list")]
        cores = len({file.read_bytes() for file in files})
    except OSError:
        cores = 0
    return cores or len(processors or ()) or os.cpu_count() or 1


def cpu_quota(proc: Path = PROC) -> float | None:
    """The tightest quota of this process's control groups and those around them, as far as they can be seen."""
    found = [quota for group in control_groups("cpu", proc) if (quota := _quota_of(group)) is not None]
    return min(found, default=None)


def bound_processors() -> Collection[int] | None:
    """The processors on which this process may run. None where the system does not tell."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None


def _quota_of(group: Path) -> float | None:
    """In cores. Both versions say it in microseconds of a period, in one file or in two."""
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text("ascii").split()
        else:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text("ascii") for name in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):  # `max`, or nothing is said here
        return None

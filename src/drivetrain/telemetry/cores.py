"""How many cores there are for this process: the machine's, those it is bound to, and what its control groups grant.

A container with a quota of processor time sees every core of its machine. Threads for all of them use the quota up
early in each period, and then all stand still to its end.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_PROCESSORS = Path("/sys/devices/system/cpu")
_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Cores:
    """`quota` counts cores as well: 1.5 is 150 ms of processor time in each 100 ms. None: as much as there is."""

    machine: int
    bound: int
    quota: float | None

    @property
    def usable(self) -> int:
        """Threads that compute at once without waiting for the quota. Half a core is none; one there always is."""
        return self.bound if self.quota is None else max(1, min(self.bound, math.floor(self.quota)))


def usable_cores() -> int:
    return cores().usable


def cores() -> Cores:
    """As it is now: a quota may be changed while we run."""
    machine = os.cpu_count() or 1
    return Cores(machine, len(_affinity()) or machine, cpu_quota())


def physical_cores(processors: Collection[int] | None = None, folder: Path = _PROCESSORS) -> int | None:
    """The cores behind these processors, of which two may share one; of all of them, if none are named.

    None where the system does not tell.
    """
    shared = set()
    for name in ["[0-9]*"] if processors is None else map(str, processors):
        for file in folder.glob(f"cpu{name}/topology/thread_siblings_list"):
            try:
                shared.add(file.read_text("ascii"))
            except (OSError, ValueError):
                return None
    return len(shared) or None


def bound_physical_cores() -> int | None:
    return physical_cores(_affinity() or None)


def cpu_quota(proc: Path = _PROC) -> float | None:
    """The tightest quota of this process's control groups and those around them, as far as they can be seen."""
    found = [quota for group in _groups(proc) if (quota := _quota_of(group)) is not None]
    return min(found, default=None)


def _affinity() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def _groups(proc: Path) -> Iterator[Path]:
    """The folders of this process's groups that may hold a quota, each with those around it, up to what is mounted.

    A container may see its own group as the root of a mount, or through a namespace under another name; where the group
    is not to be found by name, what is mounted is its own.
    """
    try:
        mounts = (proc / "self/mountinfo").read_text("utf-8", "surrogateescape").splitlines()
        memberships = (proc / "self/cgroup").read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return
    paths = {}
    for line in memberships:
        _, names, path = (*line.split(":", 2), "", "")[:3]
        paths |= dict.fromkeys(names.split(","), path)  # of version 2: without a name
    for line in mounts:
        fields, _, rest = line.partition(" - ")
        version, *_, options = (*rest.split(" "), "", "")[:3]
        name = {"cgroup": "cpu", "cgroup2": ""}.get(version)
        if name not in paths or (name and name not in options.split(",")):
            continue
        root, at = (_ESCAPED.sub(lambda found: chr(int(found[1], 8)), one) for one in fields.split(" ")[3:5])
        mounted, path = Path(at), Path(paths[name])
        inside = path.relative_to(root) if path.is_relative_to(root) else Path()
        group = mounted / inside if ".." not in inside.parts else mounted
        yield group
        yield from (folder for folder in group.parents if folder.is_relative_to(mounted))


def _quota_of(group: Path) -> float | None:
    """In cores. Both versions say it in microseconds of a period."""
    try:
        limit, period = (group / "cpu.max").read_text("ascii").split()
    except (OSError, ValueError):
        try:
            limit, period = ((group / f"cpu.cfs_{name}_us").read_text("ascii") for name in ("quota", "period"))
        except (OSError, ValueError):
            return None
    try:
        microseconds, of = int(limit), int(period)
    except ValueError:  # `max`: there is none
        return None
    return microseconds / of if microseconds > 0 and of > 0 else None

"""The control groups of this process, as far as they can be seen: those of a container, or of a service."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
_ESCAPED = re.compile(r"\\([0-7]{3})")


def control_groups(controller: str, proc: Path = PROC) -> Iterator[Path]:
    """The folders of this process's groups that may limit it, each with those around it, up to what is mounted.

    A container may see its own group as the root of a mount; where a path does not lead there, its group is what is
    mounted.
    """
    try:
        mounts = (proc / "self/mountinfo").read_text("utf-8", "surrogateescape").splitlines()
        memberships = (proc / "self/cgroup").read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return
    paths: dict[str, str] = {}
    for line in memberships:
        names, _, path = line.partition(":")[2].partition(":")
        paths |= dict.fromkeys(names.split(","), path)
    for line in mounts:
        fields, _, rest = line.partition(" - ")
        name = {"cgroup": controller, "cgroup2": ""}.get(rest.split(" ")[0])  # version 2 has one tree, without a name
        if name in paths and name in {"", *rest.split(" ")[-1].split(",")}:
            root, mounted = (Path(_ESCAPED.sub(_unescaped, field)) for field in fields.split(" ")[3:5])
            own = Path(paths[name])
            inside = own.relative_to(root) if own.is_relative_to(root) and ".." not in own.parts else Path()
            yield mounted / inside
            yield from (mounted / folder for folder in inside.parents)


def _unescaped(found: re.Match[str]) -> str:
    return chr(int(found[1], 8))

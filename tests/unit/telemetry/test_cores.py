"""How many cores there are: in control groups of both versions, as containers and machines show them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from drivetrain.telemetry.cores import Cores, cpu_quota, physical_cores

CGROUP = Path("/sys/fs/cgroup")

V1 = "33 31 0:29 {root} {mounted}/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct"
V1_OTHER = "34 31 0:30 / {mounted}/memory rw,relatime - cgroup cgroup rw,memory"
V2 = "31 23 0:28 {root} {mounted}/unified rw,nosuid - cgroup2 cgroup2 rw"


@pytest.mark.parametrize(
    ("groups", "mounts", "root", "quotas", "cores"),
    [
        ("0::/", [V2], "/", {"unified": "150000 100000"}, 1.5),
        ("0::/a/b", [V2], "/", {"unified/a/b": "300000 100000", "unified/a": "50000 100000"}, 0.5),
        ("0::/a/b", [V2], "/", {"unified/a/b": "max 100000", "unified/a": "max 100000"}, None),
        ("0::/a/b", [V2], "/a", {"unified/b": "20000 10000"}, 2.0),
        ("0::/../other", [V2], "/", {"unified": "10000 10000", "other": "1 10000"}, 1.0),
        ("0::/a", [V2], "/elsewhere", {"unified": "40000 10000", "unified/a": "1 10000"}, 4.0),
        ("0::/a", [V2], "/", {"unified/a": "10000 0"}, None),
        ("0::/a", [V2], "/", {"unified/a": "?"}, None),
        ("0::/a", [V2], "/", {}, None),
        ("0::/a:b", [V2], "/", {"unified/a:b": "10000 10000"}, 1.0),
        ("4:cpu,cpuacct:/docker/1", [V1], "/docker/1", {"cpu": "100000\n100000"}, 1.0),
        ("4:cpu,cpuacct:/x/y\n1:name=s:/", [V1], "/", {"cpu/x/y": "-1\n100000", "cpu/x": "250000\n100000"}, 2.5),
        ("4:cpu:/x\n0::/y", [V1, V2], "/", {"cpu/x": "200000\n100000", "unified/y": "100000 100000"}, 1.0),
        ("5:memory:/x", [V1_OTHER], "/", {"memory/x": "100000\n100000"}, None),
        ("nonsense", [V2, "nonsense"], "/", {}, None),
        ("", [], "/", {}, None),
    ],
)
def test_the_tightest_quota_counts(
    groups: str, mounts: list[str], root: str, quotas: dict[str, str], cores: float | None, tmp_path: Path
) -> None:
    mounted = tmp_path / "sys of\tours"
    for folder, said in quotas.items():
        (mounted / folder).mkdir(parents=True, exist_ok=True)
        if "\n" in said:
            for name, number in zip(("quota", "period"), said.split("\n"), strict=True):
                (mounted / folder / f"cpu.cfs_{name}_us").write_text(f"{number}\n")
        else:
            (mounted / folder / "cpu.max").write_text(f"{said}\n")
    escaped = str(mounted).replace(" ", r"\040").replace("\t", r"\011")
    own = tmp_path / "proc" / "self"
    own.mkdir(parents=True)
    (own / "cgroup").write_text(f"{groups}\n")
    (own / "mountinfo").write_text("".join(f"{line.format(root=root, mounted=escaped)}\n" for line in mounts))
    assert cpu_quota(tmp_path / "proc") == cores


def test_without_proc_there_is_no_quota(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None


@pytest.mark.parametrize(
    ("bound", "quota", "usable"),
    [(8, None, 8), (8, 0.001, 1), (8, 0.5, 1), (8, 1.0, 1), (8, 1.5, 1), (8, 2.0, 2), (8, 7.9, 7), (2, 64.0, 2)],
)
def test_a_quota_never_gives_more_than_there_is_nor_nothing(bound: int, quota: float | None, usable: int) -> None:
    assert Cores(16, bound, quota).usable == usable


def test_processors_that_share_a_core_are_one(tmp_path: Path) -> None:
    for number, shared in enumerate(("0,2", "1,3", "0,2", "1,3")):
        (tmp_path / f"cpu{number}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{number}" / "topology" / "thread_siblings_list").write_text(f"{shared}\n")
    (tmp_path / "cpufreq").mkdir()
    assert physical_cores(folder=tmp_path) == 2
    assert physical_cores({0, 2}, tmp_path) == 1
    assert physical_cores({0, 1, 2}, tmp_path / "nothing") == 3


@pytest.fixture
def group_of_one_core() -> Iterator[Path]:
    """A control group beside the others of this machine, where it lets us make one."""
    name = f"drivetrain-test-{os.getpid()}"
    for mounted, file, quota in (
        (CGROUP / "cpu", "cpu.cfs_quota_us", "100000"),
        (CGROUP, "cpu.max", "100000 100000"),
    ):
        group = mounted / name
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if (group / file).exists():
                (group / file).write_text(quota)
                yield group
                return
        finally:
            group.rmdir()
    pytest.skip("no control group for processor time can be made here: needs root, and cgroups that can be written")


def test_a_real_group(group_of_one_core: Path) -> None:
    def enter() -> None:
        (group_of_one_core / "cgroup.procs").write_text("0")

    command = [sys.executable, "-c", "from drivetrain.telemetry.cores import *; print(cores(), usable_cores())"]
    done = subprocess.run(command, preexec_fn=enter, capture_output=True, text=True, check=True)
    processors = os.cpu_count()
    assert done.stdout.strip() == f"{Cores(processors or 1, len(os.sched_getaffinity(0)), 1.0)} 1"

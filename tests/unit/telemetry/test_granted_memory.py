"""How much memory there is where a control group grants less than the machine has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from drivetrain.telemetry.memory import _granted

GIB = 2**30
V1 = "34 31 0:30 / {mounted}/memory rw,relatime - cgroup cgroup rw,memory"
V2 = "31 23 0:28 / {mounted}/unified rw,nosuid - cgroup2 cgroup2 rw"
GROUPS = Path("/sys/fs/cgroup/memory")


def v2(limit: str, used: int, idle: int) -> dict[str, str]:
    return {"memory.max": limit, "memory.current": str(used), "memory.stat": f"anon 5\ninactive_file {idle}\nother 1"}


def v1(limit: int, used: int, idle: int) -> dict[str, str]:
    stat = f"inactive_file 1\ntotal_inactive_file {idle}\n"
    return {"memory.limit_in_bytes": str(limit), "memory.usage_in_bytes": str(used), "memory.stat": stat}


@pytest.mark.parametrize(
    ("member", "mount", "files", "granted"),
    [
        ("0::/a", V2, {"unified/a": v2(str(8 * GIB), 5 * GIB, 2 * GIB)}, [(8 * GIB, 5 * GIB)]),
        ("0::/a", V2, {"unified/a": v2("max", 5, 2), "unified": v2(str(GIB), GIB, 0)}, [(GIB, 0)]),
        ("0::/a", V2, {"unified/a": v2(str(GIB), 2 * GIB, 0)}, [(GIB, 0)]),
        ("0::/a", V2, {"unified/a": v2("?", 5, 2)}, []),
        ("0::/a", V2, {}, []),
        ("4:memory:/a", V1, {"memory/a": v1(4 * GIB, 3 * GIB, GIB)}, [(4 * GIB, 2 * GIB)]),
        ("4:memory:/a", V1, {"memory/a": v1(9223372036854771712, 3 * GIB, GIB)}, []),
        ("4:cpu:/a", V1, {"memory/a": v1(4 * GIB, 3 * GIB, GIB)}, []),
    ],
)
def test_what_a_group_grants_and_what_is_left_of_it(
    member: str, mount: str, files: dict[str, dict[str, str]], granted: list[tuple[int, int]], tmp_path: Path
) -> None:
    for folder, texts in files.items():
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (tmp_path / folder / name).write_text(f"{text}\n")
    own = tmp_path / "proc" / "self"
    own.mkdir(parents=True)
    (own / "cgroup").write_text(f"{member}\n")
    (own / "mountinfo").write_text(f"{mount.format(mounted=tmp_path)}\n")
    assert list(_granted(tmp_path / "proc")) == granted


@pytest.mark.skipif(not os.access(GROUPS, os.W_OK), reason="needs control groups of the first version, and root")
def test_a_real_group() -> None:
    group = GROUPS / f"drivetrain-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(GIB))
        command = (
            f"import os; open({str(group / 'tasks')!r}, 'w').write(str(os.getpid()));"
            "from drivetrain.telemetry.memory import host_memory; print(host_memory())"
        )
        done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, timeout=60, check=True)
        assert f"total_bytes={GIB}," in done.stdout
        left = int(done.stdout.split("available_bytes=")[1].split(")")[0])
        assert GIB - 200 * 2**20 < left < GIB
    finally:
        group.rmdir()

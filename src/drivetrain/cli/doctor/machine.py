"""The facts behind `drivetrain doctor`. A failure to find one does not hide the others."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from drivetrain import __version__
from drivetrain.assembly import ENGINES, EngineKind
from drivetrain.cli.doctor.distributions import base_packages, extra_packages
from drivetrain.cli.terminal.origin import cpu
from drivetrain.cli.terminal.values import plain
from drivetrain.core.errors import DrivetrainError
from drivetrain.store.layout import default_root
from drivetrain.store.store import Store
from drivetrain.telemetry.memory import host_memory

PROBE_TIMEOUT_S = 120.0

_PROBE = """
import json, torch
cuda = torch.cuda
found = [
    {"device": f"cuda:{i}", "name": cuda.get_device_name(i), "total_bytes": cuda.get_device_properties(i).total_memory}
    for i in range(cuda.device_count() if cuda.is_available() else 0)
]
if torch.backends.mps.is_available():
    found.append({"device": "mps", "name": "Apple GPU", "total_bytes": 0})
print(json.dumps(found))
"""


def examine() -> dict[str, Any]:
    memory = host_memory()
    devices, problems = find_devices()
    packages = [
        *base_packages(),
        *(package for kind in ENGINES.values() if kind.needs for package in extra_packages(kind.name)),
    ]
    return {
        "drivetrain": __version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "platform": platform.platform(),
        "cpu": cpu(),
        "memory": {"total_bytes": memory.total_bytes, "available_bytes": memory.available_bytes},
        "devices": [{"device": "cpu", "name": platform.machine(), "total_bytes": 0}, *devices],
        "device_problems": problems,
        "engines": [_engine(kind) for kind in ENGINES.values()],
        "packages": plain(list(dict.fromkeys(packages))),
        "store": find_store(),
        "environment": sorted(name for name in os.environ if name.startswith("DRIVETRAIN_")),
    }


def find_devices() -> tuple[list[dict[str, Any]], list[str]]:
    """What torch finds in a separate process: a broken driver can crash or hang the process that asks."""
    if importlib.util.find_spec("torch") is None:
        return [], []
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter and text
            [sys.executable, "-P", "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        return [], [f"torch could not be asked for devices ({type(exc).__name__})"]
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1]), []
    why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return [], [f"torch is installed, but cannot be imported: {why}"]


def find_store() -> dict[str, Any]:
    found: dict[str, Any] = {"path": "", "exists": False, "free_bytes": 0, "num_models": 0, "problem": None}
    try:
        root = default_root()
        found |= {"path": str(root), "exists": root.is_dir(), "free_bytes": _free_bytes(root)}
        found["num_models"] = len(Store().list())
    except DrivetrainError as exc:
        found["problem"] = exc.message
    except OSError as exc:
        found["problem"] = exc.strerror or type(exc).__name__
    return found


def _engine(kind: EngineKind) -> dict[str, Any]:
    packages = extra_packages(kind.name) if kind.needs else []
    missing = [package.name for package in packages if package.version is None]
    if not packages and not kind.installed:  # our own metadata is missing
        missing = list(kind.needs)
    unfit = [f"{package.name} {package.version}" for package in packages if package.version and not package.fits]
    problem = None
    if missing:
        problem = f"not installed ({', '.join(missing)} missing)"
    elif unfit:
        problem = f"the installed {', '.join(unfit)} does not fit"
    return {
        "name": kind.name,
        "ready": problem is None,
        "problem": problem,
        "install": kind.install if problem else None,
    }


def _free_bytes(folder: Path) -> int:
    """On the disk where the folder is or would be."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(existing).free

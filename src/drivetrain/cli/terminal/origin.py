"""How a report came about: the command, without secrets, and the machine that it ran on."""

from __future__ import annotations

import importlib.metadata as metadata
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drivetrain import __version__
from drivetrain.store.display import size
from drivetrain.telemetry.cores import cores
from drivetrain.telemetry.memory import host_memory

HIDDEN = "(hidden)"

_PACKAGES = ("torch", "transformers", "xllamacpp", "numpy")
_SECRET = re.compile(
    r"""(\b(?:[a-z]+[_-])*(?:api[_-]?key|access[_-]?token|token|secret|password|authorization)\b["']?\s*[=:]\s*["']?)"""
    r"""((?:bearer\s+)?[^\s"',&}]+)""",
    re.IGNORECASE,
)
_USER = re.compile(r"(?<=://)[^/\s'\"]*@")
_QUERY = re.compile(r"(://[^\s'\"?]*\?)[^\s'\"]+")
"""Of an address: it may be signed."""


def command() -> str:
    """Our command line. Keys come from the environment, but somebody may have typed one."""
    text = shlex.join(["drivetrain", *sys.argv[1:]])
    for name, value in os.environ.items():
        if name.endswith("_API_KEY") and value:
            text = text.replace(value, HIDDEN)
    return _SECRET.sub(rf"\1{HIDDEN}", _QUERY.sub(rf"\1{HIDDEN}", _USER.sub(f"{HIDDEN}@", text)))


def machine() -> dict[str, Any]:
    versions = {name: version for name in _PACKAGES if (version := installed_version(name)) is not None}
    return {
        "cpu": cpu(),
        "memory": {"total_bytes": host_memory().total_bytes},
        "platform": platform.platform(),
        "versions": {"drivetrain": __version__, "python": platform.python_version(), **versions},
        "commit": _commit(),
    }


def facts() -> dict[str, str]:
    """The same in words, for the head of a report."""
    return facts_of(machine()) | {"Command": command()}


def facts_of(known: Mapping[str, Any]) -> dict[str, str]:
    cpu, versions = known["cpu"], known["versions"]
    commit = f" (commit {known['commit']})" if known.get("commit") else ""
    named = [f"{name} {version}" for name, version in versions.items()]
    return {
        "Machine": f"{cpu['model'] or 'unknown CPU'}, {cpu['usable']} cores, {size(known['memory']['total_bytes'])}",
        "Versions": f"{', '.join(named)}{commit}",
    }


def installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def cpu() -> dict[str, Any]:
    """`usable` is what the engines compute with, by the processors they are bound to and the quota of the group."""
    found = cores()
    model = _cpu_model()
    return {
        "count": found.machine, "bound": found.bound, "quota": found.quota, "usable": found.usable, "model": model
    }  # fmt: skip


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip().lower() in {"model name", "hardware"}:
                return value.strip()
    except OSError:
        pass
    return platform.processor()


def _commit() -> str | None:
    """Of the checkout that holds this package, with a plus if files were changed; None outside a checkout."""
    root, git = Path(__file__).resolve().parents[4], shutil.which("git")
    if git is None or not (root / ".git").exists():
        return None

    def output_of(*arguments: str) -> str:
        command_line = [git, "-C", str(root), *arguments]
        done = subprocess.run(command_line, capture_output=True, text=True, check=False, timeout=20)  # noqa: S603
        return done.stdout.strip()

    head = output_of("rev-parse", "--short", "HEAD")
    return f"{head}{'+' if output_of('status', '--porcelain', '--untracked-files=no') else ''}" or None

"""One of our own C++ libraries, built for a test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_BUILD = """
import pathlib, sys
from drivetrain.engines.native.cpu.library import build
print(build(pathlib.Path(sys.argv[1])))
"""


def built(source: Path, folder: Path) -> Path:
    """By a process of its own: torch reads once which compiler there is, and in tests there is none."""
    environment = {name: value for name, value in os.environ.items() if name != "CXX"}
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    command = [sys.executable, "-c", _BUILD, str(source)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())

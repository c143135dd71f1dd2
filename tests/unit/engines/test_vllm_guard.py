"""The guard of vLLM's processes, with plain processes in their place."""

from __future__ import annotations

import subprocess
import sys

import pytest

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
OWNER = """
import subprocess, sys, time
from drivetrain.engines.vllm.guard import ProcessGuard
kept = ProcessGuard([int(sys.argv[1])])
print("guarded", flush=True)
time.sleep(600)
"""


def test_what_is_guarded_dies_with_its_owner() -> None:
    with subprocess.Popen(SLEEP) as guarded:
        with subprocess.Popen([sys.executable, "-c", OWNER, str(guarded.pid)], stdout=subprocess.PIPE) as owner:
            assert owner.stdout is not None
            assert owner.stdout.readline().strip() == b"guarded"
            assert guarded.poll() is None
            owner.kill()
        assert guarded.wait(60) == -9


def test_a_guard_that_is_dismissed_kills_nothing() -> None:
    from drivetrain.engines.vllm.guard import ProcessGuard

    with subprocess.Popen(SLEEP) as living:
        guard = ProcessGuard([living.pid])
        guard.dismiss()
        assert guard._process.returncode == 0
        with pytest.raises(subprocess.TimeoutExpired):
            living.wait(0.2)
        living.kill()

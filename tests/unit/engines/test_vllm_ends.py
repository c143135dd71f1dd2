"""How vLLM's processes end: also those that are stopped, or whose device is lost. A real process stands for them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drivetrain.engines.vllm import core as core_module
from drivetrain.engines.vllm.core import Core


class Stopping:
    """vLLM's front: its shutdown waits for its process, however long that takes."""

    errored = False

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.engine_core = SimpleNamespace(
            resources=SimpleNamespace(engine_manager=SimpleNamespace(processes=[process]))
        )
        self._process = process
        self.shuts = threading.Event()

    def shutdown(self) -> None:
        self.shuts.set()
        self._process.terminate()
        self._process.wait()


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as made:
        yield made
        made.kill()


@pytest.mark.parametrize("stopped", [False, True])
async def test_a_process_that_is_stopped_is_killed(
    process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    monkeypatch.setattr(core_module, "SHUTDOWN_S", 0.5 if stopped else 60.0)
    llm: Any = Stopping(process)
    core = Core("", {})
    core._llm = llm
    if stopped:
        os.kill(process.pid, signal.SIGSTOP)
        async with asyncio.timeout(60):
            while not _is_stopped(process.pid):
                await asyncio.sleep(0.01)
    async with asyncio.timeout(60):
        await core.close()
    assert llm.shuts.is_set()
    assert process.returncode == (-signal.SIGKILL if stopped else -signal.SIGTERM)
    assert not core.alive

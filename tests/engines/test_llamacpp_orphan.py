"""`kill -9` of the process that owns llama.cpp ends llama.cpp too: idle, in an answer, and while it loads."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

WITHIN_S = 5.0


def processes() -> dict[int, int]:
    """Each process and its parent; those that have ended and wait for theirs to look are left out."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True)
    rows = [line.split(maxsplit=2) for line in listed.stdout.splitlines()]
    return {int(pid): int(parent) for pid, parent, state in rows if not state.startswith("Z")}


def gone(pid: int) -> bool:
    end = time.monotonic() + WITHIN_S
    while pid in processes():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def children(pid: int) -> list[int]:
    return [child for child, parent in processes().items() if parent == pid]


@contextlib.contextmanager
def started(*command: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=30)


def ends_with(parent: subprocess.Popen[str]) -> bool:
    """Whether its children are gone soon after their parent was killed. Nothing outlives the test."""
    left = children(parent.pid)
    assert left
    parent.kill()
    left = [child for child in left if not gone(child)]
    for child in left:
        os.kill(child, signal.SIGKILL)
    return not left


@pytest.mark.slow
@pytest.mark.parametrize("busy", [False, True])
def test_of_a_server(smollm2: str, busy: bool) -> None:
    serve = (sys.executable, "-m", "drivetrain", "serve", smollm2, "--engine", "llamacpp", "--port", "0")
    with started(*serve) as server:
        assert server.stdout is not None
        greeting = ""
        while (found := re.search(r"http://[\d.:]+", greeting)) is None:
            line = server.stdout.readline()
            assert line
            greeting += line
        body = {"model": smollm2, "prompt": "Once upon a time", "max_tokens": 1500 if busy else 1, "stream": True}
        request = urllib.request.Request(
            f"{found.group()}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer:
            assert answer.readline().startswith(b"data: ")
            if not busy:
                answer.read()
            assert ends_with(server)


LOADS_FOREVER = """
import ctypes
from unittest.mock import MagicMock

CommonParams = ggml_backend_dev_type = llama_flash_attn_type = MagicMock()
get_device_info = list

def Server(params):
    print("loading", flush=True)
    ctypes.PyDLL(None).sleep(120)  # keeps Python's lock, as the real one does
"""

PARENT = """
import threading, time
from drivetrain.engines.llamacpp.child.process import Launch, ServerProcess
process = ServerProcess(Launch(model="m", slots=1, context_length=8, spare_bytes=2**30))
threading.Thread(target=process.start, daemon=True).start()
while "loading" not in process.last_lines:
    time.sleep(0.01)
print("it loads", flush=True)
time.sleep(120)
"""


def test_while_it_loads(tmp_path: Path) -> None:
    (tmp_path / "xllamacpp.py").write_text(LOADS_FOREVER)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    with started(sys.executable, "-c", PARENT, env={**os.environ, "PYTHONPATH": path}) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "it loads\n"
        assert ends_with(parent)

"""llama.cpp's process is told how many threads to take, while it computes and not otherwise."""

from __future__ import annotations

import errno
import mmap
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from drivetrain.core.results import ComputeThreads
from drivetrain.engines.base.thread_limit import ThreadLimit
from drivetrain.engines.llamacpp.child import openmp
from drivetrain.engines.llamacpp.child.pace import Pace, SharedNumber
from drivetrain.engines.llamacpp.child.process import Launch, ServerProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="such shared memory is Linux's")


@pytest.fixture
def shared() -> Iterator[SharedNumber]:
    made = SharedNumber.made(2)
    assert made is not None
    yield made
    made.close()
    made.close()


def told(shared: SharedNumber) -> int:
    """As another process would read it."""
    with mmap.mmap(shared.file, mmap.PAGESIZE, prot=mmap.PROT_READ) as memory:
        return int(struct.unpack_from("<I", memory)[0])


def test_a_process_that_cannot_be_started_leaves_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.EAGAIN, "too many processes")

    monkeypatch.setattr(openmp, "possible", lambda: True)
    monkeypatch.setattr("drivetrain.engines.llamacpp.child.process.subprocess.Popen", fail)
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        process = ServerProcess(Launch(model="m", slots=1, context_length=8, spare_bytes=2**30))
        with pytest.raises(OSError, match="too many"):
            process.start()
        process.stop()
    assert len(os.listdir("/proc/self/fd")) <= len(before)


async def test_a_look_is_told_and_the_first_comes_with_the_work(
    shared: SharedNumber, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    monkeypatch.setattr(ThreadLimit, "begin", lambda self: events.append("begin"))
    monkeypatch.setattr(ThreadLimit, "pause", lambda self: events.append("pause"))
    monkeypatch.setattr(ThreadLimit, "look", lambda self: 1)
    pace = Pace(shared, os.getpid())
    assert told(shared) == 2
    with pace.computing():
        assert told(shared) == 1
        with pace.computing():
            pass
        assert events == ["begin"]
    assert events == ["begin", "pause"]


def ended() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        pass
    return child.pid


async def test_a_process_that_has_ended_changes_nothing(shared: SharedNumber) -> None:
    pace = Pace(shared, ended())
    with pace.computing():
        assert pace.threads == ComputeThreads(2, 2)
    assert told(shared) == 2

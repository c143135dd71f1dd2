"""The processes that `launch` starts, the agent and perhaps a server: none outlives it."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from drivetrain.cli.terminal.interrupts import Terminated

STOP_S = 15.0


def end(process: subprocess.Popen[bytes]) -> None:
    """Whether it has ended by itself or not."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def hanging_up() -> Iterator[None]:
    """A terminal that closes ends us as SIGTERM does: what was started ends too."""
    if not hasattr(signal, "SIGHUP"):
        yield
        return

    def leave(*_: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGHUP, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)

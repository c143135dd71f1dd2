"""One process of trials, from the side that asks it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from drivetrain.core.errors import Overloaded, no_file_left
from drivetrain.core.tokenizer import check_wanted
from drivetrain.text.grammar import trial_process

MAX_S = 300.0
"""By the clock. Where others take the cores, it may take that long to compute for a few seconds."""

POLL_S = 0.05
"""How often it is checked whether somebody still waits."""

GOING_S = 1.0
"""From its last word to its end."""

SLOW_S = 0.5
NICE = 5
"""What takes longer gives way to others, and to the engine."""

MAX_SAID = 200

_OUTSIDE = frozenset((signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGSTOP))
"""Signals that no grammar raises."""


class Helper:
    """All but `end` block; one thread at a time may call them. After `end` it is of no use.

    Raises `Overloaded` if the process cannot be started.
    """

    def __init__(self, engine_library: str = "") -> None:
        self.is_worn = False
        """Whether it is to be replaced, though it may still answer."""
        self.is_ready = False
        try:
            self.process = subprocess.Popen(  # noqa: S603 - our own interpreter
                # -P: without the modules of the working directory
                [sys.executable, "-P", "-m", trial_process.__name__, engine_library],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        except OSError as exc:
            raise (no_file_left(exc) or _not_started(exc.strerror or type(exc).__name__)) from exc

    def await_ready(self) -> None:
        """Passes over what else prints when Python starts. Raises `Overloaded` if it ends instead, and `Cancelled` if
        nobody waits any more.
        """
        process = self.process
        if self.is_ready:
            return
        assert process.stderr is not None
        while (said := self._read()).endswith(b"\n"):
            if said.endswith(trial_process.READY_LINE):
                process.stderr.close()
                self.is_ready = True
                return
        with suppress(subprocess.TimeoutExpired):  # how it ends tells whether it is to blame
            process.wait(GOING_S)
        process.kill()
        lines = process.stderr.read().decode(errors="replace").strip().splitlines()
        raise _not_started(lines[-1][:MAX_SAID] if lines else "it ended at once")

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def ask(self, question: bytes) -> bytes:
        """The answer, up to the end of its line; less if the process ended or does not go on.

        Raises `Cancelled` if nobody waits any more; the process is busy then.
        """
        try:
            self._write(question)
            return self._read()
        except BrokenPipeError:
            return b""

    def _write(self, question: bytes) -> None:
        """In parts: a process that was stopped reads nothing, and a pipe holds little."""
        assert self.process.stdin is not None
        to = self.process.stdin.fileno()
        os.set_blocking(to, False)
        end = time.monotonic() + MAX_S
        left = memoryview(question)
        while left and time.monotonic() < end and not self._is_stopped():
            check_wanted()
            if _is_ready(to, select.POLLOUT, POLL_S):
                left = left[os.write(to, left) :]

    def _read(self) -> bytes:
        assert self.process.stdout is not None
        source, began, said = self.process.stdout.fileno(), time.monotonic(), bytearray()
        while not said.endswith(b"\n") and (took_s := time.monotonic() - began) < MAX_S:
            check_wanted()
            if _is_ready(source, select.POLLIN, POLL_S):
                part = os.read(source, 2**16)
                if not part:
                    break
                said += part
                continue
            if self._is_stopped():
                break
            if self.is_ready and took_s > SLOW_S:
                self._give_way()
        return bytes(said)

    def _give_way(self) -> None:
        if not self.is_worn:
            self.is_worn = True  # it may not come back
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, self.process.pid, NICE)

    def _is_stopped(self) -> bool:
        """By a signal, where that can be seen."""
        try:
            stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] in "Tt"

    def end(self) -> bool:
        """Idempotent. Returns whether it had ended by itself, which is what a grammar can do to it."""
        ended = self.process.poll()
        with suppress(subprocess.TimeoutExpired):  # it has said its last word, and may be about to go
            ended = self.process.wait(GOING_S) if ended is None and self._said_all() else ended
        self.process.kill()
        self.process.communicate()
        return ended is not None and ended != 0 and -ended not in _OUTSIDE

    def _said_all(self) -> bool:
        out = self.process.stdout
        return out is not None and not out.closed and _is_ready(out.fileno(), select.POLLIN, 0)


def _is_ready(file: int, event: int, timeout_s: float) -> bool:
    """Also if the other end is gone. `select` would refuse a file with a number above 1,023."""
    poll = select.poll()
    poll.register(file, event)
    return bool(poll.poll(timeout_s * 1000))


def _not_started(why: str) -> Overloaded:
    return Overloaded(f"the process that tries grammars cannot be started: {why}")

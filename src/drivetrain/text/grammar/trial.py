"""A trial of each new grammar in a process of its own, which may be slow, fail or die of it.

Some small schemas take minutes and gigabytes to compile, and a thread that does so cannot be stopped. The process has
limits of computing time and of memory. It stays for the next grammar; after its death another one is started.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from typing import IO

from drivetrain.core.errors import EngineFailed, NotReady

MAX_CPU_S = 3.0
"""Of computing, not by the clock: on a busy machine a trial may take longer."""

MAX_REQUEST_CPU_S = 6.0
"""Of all trials of one request: others wait for their turn."""

MAX_BYTES = 2 * 2**30

HERE = b"here\n"
"""What the process says first."""

TOO_LARGE = f"it takes more than {MAX_CPU_S:g} s or {MAX_BYTES // 2**30} GiB to compile; make it smaller"


class Budget:
    """Of the trials of one request."""

    def __init__(self) -> None:
        self.left_s = MAX_REQUEST_CPU_S

    @property
    def is_spent(self) -> bool:
        return self.left_s <= 0


class Trial:
    """`run` may be called from any thread, one grammar at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def run(self, lark: str, budget: Budget | None = None) -> str:
        """What is wrong with the grammar; empty if nothing is.

        Raises `NotReady` once it is closed, and `EngineFailed` if the process cannot be started.
        """
        budget = budget or Budget()
        limit_s = min(MAX_CPU_S, budget.left_s)
        if budget.is_spent:
            return TOO_LARGE
        with self._lock:
            verdict = self._ask(json.dumps([limit_s, lark]).encode() + b"\n")
            if verdict.endswith(b"\n"):
                fault, took_s = json.loads(verdict)
                budget.left_s -= took_s
                return str(fault)
            self._end()
            if self._closed:
                raise NotReady("the worker is stopped")
            budget.left_s -= limit_s
            return TOO_LARGE

    def start(self) -> None:
        """So that the first grammar need not wait for it."""
        with self._lock:
            self._running()

    def close(self) -> None:
        """Idempotent. A trial under way ends with it."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()
        with self._lock:
            self._end()

    def _ask(self, grammar: bytes) -> bytes:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(grammar)
            process.stdin.flush()
            return process.stdout.readline()
        except BrokenPipeError:
            return b""

    def _running(self) -> subprocess.Popen[bytes]:
        if self._closed:
            raise NotReady("the worker is stopped")
        if self._process is not None and self._process.poll() is not None:
            self._end()  # it died between two trials, of nothing that a grammar did
        if self._process is None:
            self._process = _start()
            assert self._process.stdout is not None
            if self._process.stdout.readline() != HERE:
                status = self._process.wait()
                self._end()
                if self._closed:
                    raise NotReady("the worker is stopped")
                raise EngineFailed(f"the process that tries grammars ended with status {status} before it tried any")
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - our own interpreter
        [sys.executable, "-P", "-m", __name__],  # without the modules of the working directory
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def _try_all(grammars: IO[bytes], verdicts: IO[bytes]) -> None:
    """In the process: a verdict for each grammar, with the time it took, until there are no more."""
    from drivetrain.text.grammar.library import BEHIND, fault_of

    os.nice(BEHIND)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    verdicts.write(HERE)
    verdicts.flush()
    for line in grammars:
        limit_s, lark = json.loads(line)
        began = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, limit_s)  # at its end the signal ends the process
        fault = fault_of(lark)
        signal.setitimer(signal.ITIMER_PROF, 0)
        verdicts.write(json.dumps([fault, time.process_time() - began]).encode() + b"\n")
        verdicts.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches it too; its end is that of its input
    _try_all(sys.stdin.buffer, sys.stdout.buffer)

"""A trial of each new grammar in a process of its own, which may be slow, fail or die of it.

Some small schemas take minutes and gigabytes to compile, and a thread that does so cannot be stopped. The process has
limits of computing time and of memory. It stays for the next grammar; after its death another one is started.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from typing import IO

from drivetrain.core.errors import NotReady, Overloaded

MAX_CPU_S = 3.0
"""Of computing, not by the clock: on a busy machine a trial may take longer."""

MAX_REQUEST_CPU_S = 8.0
"""Of all trials of one request: others wait for their turn. Two may end by their limit."""

MAX_S = 30.0
"""By the clock, so that nobody waits for ever where others take the cores."""

MAX_BYTES = 2 * 2**30

MAX_SAID = 200

READY_LINE = b"ready\n"
"""What the process says before anything else of its own."""

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

        Raises `NotReady` once it is closed, and `Overloaded` if the process cannot be started.
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
        except BrokenPipeError:
            return b""
        answers, _, _ = select.select([process.stdout], [], [], MAX_S)
        return process.stdout.readline() if answers else b""

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self._end()  # it died between two trials, of nothing that a grammar did
        if self._process is None and not self._closed:
            try:
                self._process = _start()
            except OSError as exc:
                raise Overloaded(f"the process that tries grammars cannot be started: {exc.strerror}") from exc
            self._await_ready(self._process)
        if self._closed or self._process is None:
            self._end()
            raise NotReady("the worker is stopped")
        return self._process

    def _await_ready(self, process: subprocess.Popen[bytes]) -> None:
        """Passes over what else prints when Python starts."""
        assert process.stdout is not None
        assert process.stderr is not None
        if self._closed:
            return
        for line in process.stdout:
            if line == READY_LINE:
                process.stderr.close()
                return
        said = process.stderr.read().decode(errors="replace").strip().splitlines()
        self._end()
        if not self._closed:
            why = said[-1] if said else "it ended at once"
            raise Overloaded(f"the process that tries grammars cannot be started: {why[:MAX_SAID]}")

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
        stderr=subprocess.PIPE,
    )


def _try_all(grammars: IO[bytes], verdicts: IO[bytes]) -> None:
    """In the process: a verdict for each grammar, with the time it took, until there are no more."""
    from drivetrain.text.grammar.library import fault_of

    _, most = resource.getrlimit(resource.RLIMIT_AS)
    limit = MAX_BYTES if most == resource.RLIM_INFINITY else min(MAX_BYTES, most)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    verdicts.write(READY_LINE)
    verdicts.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # nobody reads it from here on
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

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
from typing import IO

MAX_CPU_S = 4.0
"""Of computing, not by the clock: on a busy machine a trial may take longer."""

MAX_BYTES = 2 * 2**30

BEHIND = 10
"""By how much grammars stand behind the engine where both want a core: a step that waits for one keeps all streams waiting."""

TOO_LARGE = f"it takes more than {MAX_CPU_S:g} s or {MAX_BYTES // 2**30} GiB to compile; make it smaller"


class Trial:
    """`run` may be called from any thread, one grammar at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, lark: str) -> str:
        """What is wrong with the grammar; empty if nothing is."""
        with self._lock:
            if self._process is not None and self._process.poll() is not None:
                self._end()  # it died between two trials, of nothing that a grammar did
            process = self._process = self._process or _start()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(json.dumps(lark).encode() + b"\n")
                process.stdin.flush()
                verdict = process.stdout.readline()
            except BrokenPipeError:
                verdict = b""
            if not verdict.endswith(b"\n"):
                self._end()
                return TOO_LARGE
            fault: str = json.loads(verdict)
            return fault

    def close(self) -> None:
        """Idempotent. A trial under way ends with it."""
        process = self._process
        if process is not None:
            process.kill()
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - our own interpreter
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def _try_all(grammars: IO[bytes], verdicts: IO[bytes]) -> None:
    """In the process: a verdict for each grammar, until there are no more."""
    from drivetrain.text.grammar.library import fault_of

    os.nice(BEHIND)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    for line in grammars:
        signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)  # at its end the signal ends the process
        fault = fault_of(json.loads(line))
        signal.setitimer(signal.ITIMER_PROF, 0)
        verdicts.write(json.dumps(fault).encode() + b"\n")
        verdicts.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches it too; its end is that of its input
    _try_all(sys.stdin.buffer, sys.stdout.buffer)

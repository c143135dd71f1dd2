"""Ends vLLM's processes where this one is killed: by themselves they would run on and hold the device."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable

_WATCH = """
import os, sys
if not sys.stdin.read():
    for pid in sys.argv[1:]:
        try:
            os.kill(int(pid), 9)
        except OSError:
            pass
"""


class ProcessGuard:
    """A small process that reads from us. If the pipe closes without a word, we are gone, and it kills its charges."""

    def __init__(self, pids: Iterable[int]) -> None:
        command = [sys.executable, "-I", "-S", "-c", _WATCH, *map(str, pids)]
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and our own words
            command, stdin=subprocess.PIPE, start_new_session=True
        )

    def dismiss(self) -> None:
        """Nothing is left to guard."""
        self._process.communicate(b"done")

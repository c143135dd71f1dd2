"""A virtual environment for one peer, with exactly the packages in its lock file next to this one."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Say = Callable[[str], None]

ROOT = Path(__file__).parents[2] / ".venv-peers"
"""Not in git. Everything that the peers need or write is here, except the weights, which are in the store."""

REPORT_EVERY = 20


@dataclass(frozen=True, slots=True)
class Environment:
    name: str

    @property
    def folder(self) -> Path:
        return ROOT / self.name

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def lock(self) -> Path:
        return Path(__file__).with_name(f"{self.name}.txt")

    @property
    def complete(self) -> bool:
        """The stamp is written last and holds the lock file that was installed."""
        stamp = self.folder / "installed.txt"
        return stamp.is_file() and stamp.read_text() == self.lock.read_text()

    def version(self, package: str) -> str:
        return dict(line.split("==") for line in self.lock.read_text().split())[package]

    def setup(self, say: Say) -> None:
        """Does nothing if it is complete. Raises `RuntimeError` with the end of pip's output if that fails."""
        if self.complete:
            say(f"{self.name}: {self.folder} is complete")
            return
        started = time.monotonic()
        if not self.python.exists():
            say(f"{self.name}: making {self.folder}")
            subprocess.run([sys.executable, "-m", "venv", str(self.folder)], check=True)
        self._install(say)
        (self.folder / "installed.txt").write_text(self.lock.read_text())
        say(f"{self.name}: installed in {time.monotonic() - started:.0f} s")

    def _install(self, say: Say) -> None:
        """Without dependencies: the lock names them all, and leaves out the ones that break the peer."""
        total = len(self.lock.read_text().split())
        say(f"{self.name}: fetching {total} packages")
        command = [str(self.python), "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
        command += ["--no-deps", "--only-binary", ":all:", "--requirement", str(self.lock)]
        lines: list[str] = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
            assert pip.stdout is not None
            done = 0
            for line in pip.stdout:
                lines.append(line)
                if re.match(r"Collecting|Requirement already satisfied", line):
                    done += 1
                    if done % REPORT_EVERY == 0:
                        say(f"{self.name}: {done} of {total}")
                if line.startswith("Installing"):
                    say(f"{self.name}: unpacking")
        if pip.returncode:
            raise RuntimeError(f"{self.name}: pip ended with status {pip.returncode}\n" + "".join(lines[-15:]))

"""The servers that this user runs on this machine: a locked file for each port, with the process beside it.

The system unlocks the file when the process ends. So a file that nobody holds says nothing, and a process id that was
given to another process since then is never believed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

from drivetrain.core.errors import DrivetrainError
from drivetrain.store.layout import default_root
from drivetrain.store.locks import locked_if_free

_LOCK = re.compile(r"(\d{1,5})\.lock")


@contextlib.contextmanager
def recorded(sock: socket.socket) -> Iterator[None]:
    """While entered, `drivetrain stop` finds this process by the port. A store that cannot be written has no record."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, DrivetrainError):
            lock = _lock_of(sock.getsockname()[1])
            if stack.enter_context(locked_if_free(lock)):
                record = lock.with_suffix(".json")
                record.unlink(missing_ok=True)  # a link that somebody left there is not followed
                with record.open("x", encoding="utf-8") as file:
                    json.dump({"pid": os.getpid(), "mark": _mark(os.getpid())}, file)
                stack.callback(record.unlink, missing_ok=True)
        yield


def process_on(port: int) -> int | None:
    """The process of the server there; None if no server of ours is known."""
    lock = _lock_of(port)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        if not (_is_own(lock) and _is_own(lock.with_suffix(".json"))):
            return None
        with locked_if_free(lock) as left_over:
            if left_over:
                return None
        record = json.loads(lock.with_suffix(".json").read_text(encoding="utf-8"))
        pid, mark = record["pid"], record["mark"]
        is_process = type(pid) is int and pid > 1
        return pid if is_process and mark and mark == _mark(pid) else None
    return None


def _is_own(path: Path) -> bool:
    """A plain file of this user: what anybody else wrote is not believed."""
    found = path.lstat()
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid()


def ports() -> list[int]:
    """Where servers of ours run."""
    folder = _folder()
    found = [_LOCK.fullmatch(path.name) for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(port for match in found if match and process_on(port := int(match[1])) is not None)


def _folder() -> Path:
    return default_root() / "servers"


def _lock_of(port: int) -> Path:
    return _folder() / f"{port}.lock"


def _mark(pid: int) -> str:
    """What tells a process from one of another container or machine, or a later one, with the same id. Empty where the
    system does not say.
    """
    try:
        began = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
        return f"{socket.gethostname()} {os.readlink(f'/proc/{pid}/ns/pid')} {began}"
    except (OSError, IndexError):
        return _mark_by_ps(pid)


def _mark_by_ps(pid: int) -> str:
    """Where there is no /proc."""
    try:
        asked = ["ps", "-o", "lstart=", "-p", str(pid)]
        told = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"{socket.gethostname()} {told.stdout.strip()}" if told.stdout.strip() else ""

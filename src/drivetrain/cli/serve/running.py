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
                record.write_text(json.dumps({"pid": os.getpid(), "mark": _mark(os.getpid())}), encoding="utf-8")
                stack.callback(record.unlink, missing_ok=True)
        yield


def process_on(port: int) -> int | None:
    """The process of the server there; None if no server of ours is known."""
    lock = _lock_of(port)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        if not lock.exists():
            return None
        with locked_if_free(lock) as left_over:
            if left_over:
                return None
        record = json.loads(lock.with_suffix(".json").read_text(encoding="utf-8"))
        pid = int(record["pid"])
        return pid if record["mark"] == _mark(pid) else None
    return None


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
    """What tells a process from one of another container, or a later one, with the same id. Empty where the system does
    not say.
    """
    try:
        began = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
        return f"{os.readlink(f'/proc/{pid}/ns/pid')} {began}"
    except (OSError, IndexError):
        return ""

"""How many files the process may have open: each connection is one, and without any left nothing works."""

from __future__ import annotations

import contextlib
import logging
import os
import sys

from drivetrain.core.errors import InvalidSetting
from drivetrain.server.settings import ServerSettings

WANTED = 65536

RESERVE = 12
"""Files that connections to be served leave to everything else: a process takes up to eight while it starts, and a
connection to be refused takes one."""

_log = logging.getLogger("drivetrain.server")


def raise_limit() -> None:
    """As far as allowed, for this process and those that it starts. Raises `InvalidSetting` if that is too low."""
    if sys.platform == "win32":  # has no such limit
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < WANTED:
        best = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
        with contextlib.suppress(OSError, ValueError):  # macOS allows less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (best, hard))
    room()


def limit() -> int:
    """Files that this process may have open."""
    if sys.platform == "win32":
        return sys.maxsize
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def room() -> int:
    """Connections for which there are files beside those open now. Raises `InvalidSetting` if there are none."""
    may_open, used = limit(), _first_free()
    if used + RESERVE >= may_open:
        raise InvalidSetting(
            f"this process may open only {may_open} files, too few to serve: it needs at least {used + RESERVE + 1}; "
            "raise the limit (ulimit -n; LimitNOFILE= for systemd, --ulimit nofile= for Docker)"
        )
    return may_open - RESERVE - used


def warn_if_few(settings: ServerSettings) -> None:
    """Raises `InvalidSetting` if not even one connection can be served."""
    if (num := room()) < settings.max_connections:
        _log.warning(
            "this process may open only %d files, so it can serve about %d connections, not %d; "
            "raise the limit (ulimit -n)",
            limit(),
            num,
            settings.max_connections,
        )


def _first_free() -> int:
    """The lowest number that is free, which the next file gets: at a start, how many there are."""
    try:
        file = os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return limit()
    os.close(file)
    return file

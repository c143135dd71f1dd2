"""How many files the process may have open: each connection is one, and without any left nothing works."""

from __future__ import annotations

import contextlib
import logging
import sys
from dataclasses import replace

from drivetrain.server.settings import ServerSettings

WANTED = 65536

_log = logging.getLogger("drivetrain.server")


def within_files(settings: ServerSettings) -> ServerSettings:
    """Raise the limit as far as allowed; if that is still too low, allow fewer connections.

    A quarter of the files is kept for everything else.
    """
    if sys.platform == "win32":  # has no such limit
        return settings
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return settings
    if soft < WANTED:
        best = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
        with contextlib.suppress(OSError, ValueError):  # macOS allows less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (best, hard))
            soft = best
    max_connections = soft - soft // 4
    if settings.max_connections <= max_connections:
        return settings
    _log.warning(
        "this process may open only %d files, so it accepts %d connections, not %d; raise the limit (ulimit -n)",
        soft,
        max_connections,
        settings.max_connections,
    )
    return replace(settings, max_connections=max_connections)

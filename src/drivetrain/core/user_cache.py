"""The folder in which the user keeps what can be fetched or made again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def user_cache(environ: Mapping[str, str]) -> Path:
    """`$XDG_CACHE_HOME/drivetrain`, else `~/.cache/drivetrain`. Raises `RuntimeError` if there is no home folder."""
    cache = environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(cache):  # the XDG specification says to ignore a relative one
        return Path(cache) / "drivetrain"
    return Path.home() / ".cache" / "drivetrain"

"""API keys, from a file or from the environment."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from drivetrain.core.errors import InvalidSetting

KEY_VARIABLE = "DRIVETRAIN_API_KEY"


def read_keys(file: Path | None) -> tuple[str, ...]:
    """One key per line; blank lines and comments are skipped. Raises `InvalidSetting`."""
    if file is None:
        return ()
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not text"
        raise InvalidSetting(f"the key file {file} cannot be read: {reason}", param="api_key_file") from exc
    keys = tuple(line.strip() for line in lines if line.strip() and not line.strip().startswith("#"))
    if not keys:
        raise InvalidSetting(f"the key file {file} contains no key", param="api_key_file")
    return keys


def key_in_environment(*variables: str) -> tuple[str, str]:
    """The key, and the variable it comes from: the first one that is set. Both are empty if none is."""
    found = ((key, name) for name in variables if (key := os.environ.get(name, "").strip()))
    return next(found, ("", ""))


def sendable(key: str, origin: str) -> str:
    """The key, if a request can carry it. Raises `InvalidSetting`."""
    if not (key.isascii() and key.isprintable()):
        raise InvalidSetting(
            f"the key from {origin} contains characters that cannot be sent in a header", param="api_key"
        )
    return key


def key_in_shell(file: Path | None, variable: str) -> str:
    """How a line for a shell has the key without showing it."""
    return f"$(grep -v '^#' {shlex.quote(str(file))} | head -n 1)" if file is not None else f"${variable}"

"""How what a library says comes into a message of ours: one short line, without this machine's paths and addresses."""

from __future__ import annotations

import re

from drivetrain.core import errors

_ADDRESS = re.compile(r"https?://[^\s'\"]+|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b")
_PATH = re.compile(r"(?:[A-Za-z]:)?(?:[/\\][\w.@+-]+){2,}[/\\]?")


def clean(text: str, limit: int = 300) -> str:
    """Short enough for a log line or a response."""
    return errors.one_line(_PATH.sub("<path>", _ADDRESS.sub("<address>", text)), limit)


def one_line(exc: BaseException) -> str:
    """Class and message."""
    text = clean(str(exc))
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__

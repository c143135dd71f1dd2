"""From keyword arguments, as a Python caller gives them, to a `GenerateRequest`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from drivetrain.core.errors import Unsupported
from drivetrain.core.parameters import PARAMETERS
from drivetrain.core.request import GenerateRequest

_MAX_NAME_CHARS = 64
"""Longer than any name; what is behind it is not compared."""


def build_request(raw: Mapping[str, Any]) -> GenerateRequest:
    """None is omitted. An unknown name is refused; the request judges the values."""
    values = {name: value for name, value in raw.items() if value is not None}
    for name in values:
        if name not in PARAMETERS:
            raise Unsupported(f"{name} is not a parameter{did_you_mean(name, PARAMETERS)}", param=name)
    return GenerateRequest(**values)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The nearest known name as the end of a sentence, or nothing."""
    close = difflib.get_close_matches(name[:_MAX_NAME_CHARS], known, 1)
    return f"; did you mean {close[0]}?" if close else ""

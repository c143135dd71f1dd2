"""A server's text made fit to be shown: no control characters, not too long, and without our keys."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from drivetrain.engines.remote.address import Key

MAX_CHARS = 300


class Redactor:
    def __init__(self, keys: Sequence[Key]) -> None:
        self._keys = keys

    def text(self, text: str) -> str:
        """Characters that cannot be printed are escaped."""
        for key in self._keys:
            text = key.hide(text)
        cut = text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 1] + "…"
        return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut)

    def json(self, data: bytes) -> Any:
        """A document with every string redacted, including the names in objects. None if it is not JSON."""
        try:
            return self._all(json.loads(data))
        except (ValueError, RecursionError):
            return None

    def _all(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self._all(item) for item in value]
        if isinstance(value, dict):
            return {self.text(name): self._all(item) for name, item in value.items()}
        return value

"""Server-sent events of the APIs that name them."""

from __future__ import annotations

import json
from typing import Any


def events(data: bytes) -> list[tuple[str, dict[str, Any]]]:
    """Name and data of each. A last `[DONE]` is no event."""
    parts = data.decode().split("\n\n")
    assert parts.pop() == ""
    if parts[-1] == "data: [DONE]":
        parts.pop()
    named = []
    for part in parts:
        name, body = part.split("\n")
        named.append((name.removeprefix("event: "), json.loads(body.removeprefix("data: "))))
    assert all(name == body["type"] for name, body in named)
    return named

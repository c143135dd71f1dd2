"""The bytes of all bodies that are in memory together: taken as they come in; what their values hold, until the end."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

BODY_KEY = "drivetrain.body"
"""Where a request's scope holds the share of its body."""


MAX_LOOKED_AT = 2048
"""Items of a list whose own size is counted: there are no longer lists of texts, and ids are in the list's size."""


class BodyBudget:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0


class BodyShare:
    """Of one request. What a client only announces takes nothing: it might never come."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._size = 0

    def grow(self, size: int) -> bool:
        """Take so many bytes more; False, and nothing taken, where there is no room for them."""
        if self._budget.used + size > self._budget.limit:
            return False
        self._budget.used += size
        self._size += size
        return True

    def shrink(self, size: int) -> None:
        """So many bytes are held from now on, or as many as before where that is less."""
        self._budget.used -= max(0, self._size - size)
        self._size = min(self._size, size)

    def release(self) -> None:
        """May be called again."""
        self.shrink(0)


def release_body(scope: Mapping[str, Any], held: int = 0) -> None:
    """But for what its values still hold: until the request has ended."""
    share: BodyShare | None = scope.get(BODY_KEY)
    if share is not None:
        share.shrink(held)


def held_bytes(value: Any) -> int:
    """About what the values of a body take: their texts and their long lists."""
    if isinstance(value, str):
        return sys.getsizeof(value)
    if isinstance(value, Mapping):
        return sum(map(held_bytes, value.values()))
    if isinstance(value, (list, tuple)):
        return sys.getsizeof(value) + sum(map(held_bytes, value[:MAX_LOOKED_AT]))
    if is_dataclass(value):
        return sum(held_bytes(getattr(value, field.name)) for field in fields(value))
    return 0

"""The bytes of all bodies that are in memory together: taken as they come in, given back once they are parsed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BODY_KEY = "drivetrain.body"
"""Where a request's scope holds the share of its body."""


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

    def release(self) -> None:
        """May be called again."""
        self._budget.used -= self._size
        self._size = 0


def release_body(scope: Mapping[str, Any]) -> None:
    share: BodyShare | None = scope.get(BODY_KEY)
    if share is not None:
        share.release()

"""What the server itself counts: answers by address and status, and what was refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from drivetrain.core.errors import DrivetrainError, InvalidRequest, ModelNotFound, Overloaded
from drivetrain.server.parse.schema import NAMES

ROUTE_KEY = "drivetrain.route"
"""Where a request's scope says which address it found."""

GONE_KEY = "drivetrain.gone"
"""Is in a request's scope once its client has left."""

OTHER = "other"
"""In the place of what a client made up, so that nobody can make series without end."""

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


@dataclass(slots=True)
class Counts:
    """`refusals` are of requests that were answered with an error before anything was generated, for a reason that is
    the caller's or the moment's: by its code and the field it names."""

    responses: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    """By method, path and status."""
    refusals: Counter[tuple[str, str]] = field(default_factory=Counter)

    def answered(self, scope: Mapping[str, Any], status: int) -> None:
        """Only what somebody was there to get."""
        if GONE_KEY in scope:
            return
        method = scope["method"] if scope["method"] in _METHODS else OTHER
        self.responses[method, scope.get(ROUTE_KEY, ""), status] += 1

    def refused(self, error: DrivetrainError) -> None:
        if isinstance(error, (InvalidRequest, Overloaded, ModelNotFound)):
            self.refusals[error.code, _field(error.param)] += 1


def _field(param: str | None) -> str:
    """`messages[0].role` is about `messages`."""
    if not param:
        return ""
    head = param.partition("[")[0].partition(".")[0]
    return head if head in NAMES else OTHER

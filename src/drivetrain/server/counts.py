"""What the server itself counts: responses by path and status, and refused requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from drivetrain.core.errors import DrivetrainError, InvalidRequest, ModelNotFound, Overloaded
from drivetrain.server.errors import split_param
from drivetrain.server.parse.bodies import NAMES

ROUTE_KEY = "drivetrain.route"
"""The route that a request matched, in its scope."""

GONE_KEY = "drivetrain.gone"
"""Set in a request's scope once its client has left."""

OTHER = "other"
"""Replaces names that clients make up, so that nobody can create endless series."""

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


@dataclass(slots=True)
class Counts:
    """`refusals` counts requests refused before anything was generated, because of the request or the current load,
    by error code and field."""

    responses: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    """By method, path and status."""
    refusals: Counter[tuple[str, str]] = field(default_factory=Counter)

    def answered(self, scope: Mapping[str, Any], status: int) -> None:
        """Not counted if the client had left."""
        if GONE_KEY in scope:
            return
        method = scope["method"] if scope["method"] in _METHODS else OTHER
        self.responses[method, scope.get(ROUTE_KEY, ""), status] += 1

    def refused(self, error: DrivetrainError) -> None:
        if isinstance(error, (InvalidRequest, Overloaded, ModelNotFound)):
            self.refusals[error.code, _field(error.param)] += 1


def _field(param: str | None) -> str:
    if not param:
        return ""
    name, _ = split_param(param)
    return name if name in NAMES else OTHER

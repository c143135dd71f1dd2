"""What came of one GET, and of all that were asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from drivetrain.http.address import Address
from drivetrain.tools.doctor.series import Series
from drivetrain.tools.doctor.values import table, text

REFUSED = frozenset({401, 403})


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """`status` is 0 where no whole answer came; `problem` says why then. `document` is None for what is no JSON."""

    status: int = 0
    problem: str = ""
    reached: bool = True
    document: Any = None
    series: Series = field(default_factory=lambda: Series({}))
    headers: Mapping[str, str] = field(default_factory=dict)
    took_s: float = 0.0

    @property
    def ok(self) -> bool:
        return self.status == 200

    @property
    def refused(self) -> bool:
        return self.status in REFUSED

    @property
    def table(self) -> dict[str, Any]:
        """The document of a page that was given; empty for any other."""
        return table(self.document) if self.ok else {}

    @property
    def said(self) -> str:
        """Why it was not given, in words."""
        message = text(table(table(self.document).get("error")).get("message"))
        return self.problem or f"status {self.status}" + (f": {message}" if message else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """`open` is `/status` asked without the key, where one was sent with the others."""

    address: Address
    sent_key: bool
    sent_admin_key: bool
    health: Page
    ready: Page
    status: Page
    metrics: Page
    models: Page
    admin: Page
    open: Page | None
    cards: Mapping[str, Page]
    asked_at: float
    """Our clock in seconds of the epoch, when `/health` was answered."""

    @property
    def named(self) -> dict[str, Page]:
        """By path, those that a server of ours has."""
        return {
            "/health": self.health,
            "/ready": self.ready,
            "/status": self.status,
            "/metrics": self.metrics,
            "/v1/models": self.models,
            "/admin/models": self.admin,
        }

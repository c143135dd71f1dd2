"""The result of one GET, and of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from drivetrain.http.address import Address
from drivetrain.tools.doctor.series import Series
from drivetrain.tools.doctor.values import table, text

REFUSED = frozenset({401, 403})


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedPage:
    """`status` is 0 if no complete answer came, and `problem` says why. `document` is None if it is not JSON."""

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
        """The document, if the page was served; otherwise an empty one."""
        return table(self.document) if self.ok else {}

    @property
    def reason(self) -> str:
        """Why the page was not served."""
        message = text(table(table(self.document).get("error")).get("message"))
        return self.problem or f"status {self.status}" + (f": {message}" if message else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """`open` is `/status` without the key, if the others were requested with one."""

    address: Address
    sent_key: bool
    sent_admin_key: bool
    health: FetchedPage
    ready: FetchedPage
    status: FetchedPage
    metrics: FetchedPage
    models: FetchedPage
    admin: FetchedPage
    open: FetchedPage | None
    cards: Mapping[str, FetchedPage]
    asked_at: float
    """Our clock when `/health` was answered, in seconds since the epoch."""

    @property
    def named(self) -> dict[str, FetchedPage]:
        """The pages that every Drivetrain server has, by path."""
        return {
            "/health": self.health,
            "/ready": self.ready,
            "/status": self.status,
            "/metrics": self.metrics,
            "/v1/models": self.models,
            "/admin/models": self.admin,
        }

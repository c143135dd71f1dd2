"""What a fleet gets for each model: how to open it, and what is known about it before that."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from drivetrain.core.engine import Progress
from drivetrain.core.stats import Stats
from drivetrain.core.worker import WorkerPort


class Opened(WorkerPort, Protocol):
    """A worker that the fleet owns."""

    async def stop(self, grace_s: float | None = 0.0) -> None:
        """Free the model, its memory and its threads. Idempotent; once begun, it runs to the end."""
        ...


Open = Callable[[Progress], Awaitable[Opened]]
"""Opens a new worker that is ready. If it raises or is cancelled, it leaves nothing behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One model that may be loaded. The limits apply while requests wait for that; then its worker's own apply."""

    name: str
    open: Open
    aliases: tuple[str, ...] = ()
    pinned: bool = False
    max_waiting: int = 64
    timeout_s: float = 600.0
    max_timeout_s: float = 3600.0
    size_bytes: Callable[[], int] = lambda: 0
    """About the memory that it will need; 0 if not known. Called before each load."""
    spoilt: Callable[[], str] = lambda: ""
    """Why its files cannot be loaded; empty if they can. Called before other models make room for it."""
    stats: Stats = field(default_factory=Stats)
    """For the counts of each worker that `open` returns, and of the requests that never reached one."""

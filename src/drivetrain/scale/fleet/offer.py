"""What a fleet is handed for each model: how to open it, and what is known of it before it is opened."""

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
        """Free the model, its memory and its threads. Idempotent; once begun it goes on to the end."""
        ...


Open = Callable[[Progress], Awaitable[Opened]]
"""A new worker, ready. Raises what kept it from loading, and leaves nothing behind then; nor when it is cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One model that may be loaded. The limits hold for those who wait until it is: its worker's own come after."""

    name: str
    open: Open
    aliases: tuple[str, ...] = ()
    pinned: bool = False
    max_waiting: int = 64
    timeout_s: float = 600.0
    max_timeout_s: float = 3600.0
    size_bytes: Callable[[], int] = lambda: 0
    """About the memory that it will need; 0: not known. Asked before each load."""
    spoilt: Callable[[], str] = lambda: ""
    """What its files already tell against it, in words; empty: nothing. Asked before others go for it."""
    stats: Stats = field(default_factory=Stats)
    """Where each worker that `open` gives must count, and the fleet those requests that never got to one."""

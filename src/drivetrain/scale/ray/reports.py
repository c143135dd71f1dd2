"""What a replica reports about itself, and what the reports of one deployment add up to. Knows no Ray."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TypedDict

from drivetrain.core.capabilities import Capabilities
from drivetrain.core.results import NOTHING_COUNTED, EngineCounts
from drivetrain.core.status import Metadata, State, Status

RECENT_S = 15.0
"""A report counts until another replica's comes that much later. Serve asks a replica that is away only if all are, so
replicas that take requests stop reporting only when there are none. And a long silence of busy ones ages no report."""

BEST_FIRST = (State.READY, State.RESTARTING, State.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Settings of the worker that the handle enforces, because the readers are on its side."""

    timeout_s: float
    drain_s: float
    reader_timeout_s: float
    max_unread: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReport:
    """All replicas of a deployment have the same metadata, capabilities and terms."""

    metadata: Metadata
    capabilities: Capabilities
    terms: Terms
    status: Status
    restarts: int = 0
    """How often its engine failed and was loaded again."""
    replica: str = ""


class RoutingStats(TypedDict):
    """What a replica tells routers through Serve."""

    away: bool
    """It takes no requests now, because its engine is restarting or has failed."""


@dataclass(frozen=True, slots=True)
class TimedReport:
    report: ReplicaReport
    at: float


class ReplicaReports:
    def __init__(self) -> None:
        self._recent: dict[str, TimedReport] = {}
        self._restarts: dict[str, int] = {}
        self._counts: dict[str, EngineCounts] = {}

    def add(self, report: ReplicaReport, now: float) -> None:
        name = report.replica
        self._recent[name] = TimedReport(report, now)
        self._recent = {other: timed for other, timed in self._recent.items() if now - timed.at <= RECENT_S}
        self._restarts[name] = max(report.restarts, self._restarts.get(name, 0))
        self._counts[name] = report.status.counts.or_more(self._counts.get(name, NOTHING_COUNTED))

    @property
    def _statuses(self) -> list[Status]:
        return [timed.report.status for timed in self._recent.values()]

    @property
    def state(self) -> State:
        """That of the best replica. If all are draining or stopped, one that takes requests is still to come."""
        states = {status.state for status in self._statuses}
        return next((state for state in BEST_FIRST if state in states), State.LOADING)

    @property
    def engine_alive(self) -> bool:
        """Of any of the best replicas."""
        best = self.state
        return any(status.engine_alive for status in self._statuses if status.state is best)

    def last_progress(self) -> float | None:
        """When an engine last made progress, by the clock of `add`."""
        return max((timed.at - timed.report.status.last_progress_s for timed in self._recent.values()), default=None)

    @property
    def restarts(self) -> int:
        """Of all replicas that there have been, like the next ones: none falls when a replica goes."""
        return sum(self._restarts.values())

    @property
    def counts(self) -> EngineCounts:
        return reduce(EngineCounts.plus, self._counts.values(), NOTHING_COUNTED)

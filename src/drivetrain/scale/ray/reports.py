"""What the replicas of one deployment said of themselves last, and what they are together. Knows no Ray."""

from __future__ import annotations

from dataclasses import dataclass

from drivetrain.core.status import State
from drivetrain.scale.ray.replica import Description

RECENT_S = 15.0
"""A word counts until one comes that is so much later. Serve asks one that is away only where all are away, so words of
those that take requests stop when none does, and no long silence of a busy one makes its word an old one."""

BEST_FIRST = (State.READY, State.RESTARTING, State.FAILED)


@dataclass(frozen=True, slots=True)
class TimedReport:
    said: Description
    at: float


class ReplicaReports:
    def __init__(self) -> None:
        self._recent: dict[str, TimedReport] = {}
        self._restarts: dict[str, int] = {}
        self._preemptions: dict[str, int] = {}

    def hear(self, said: Description, now: float) -> None:
        name = said.replica
        self._recent[name] = TimedReport(said, now)
        self._recent = {other: word for other, word in self._recent.items() if now - word.at <= RECENT_S}
        self._restarts[name] = max(said.restarts, self._restarts.get(name, 0))
        self._preemptions[name] = max(said.status.preemptions, self._preemptions.get(name, 0))

    @property
    def state(self) -> State:
        """That of the best of them. Where all are on their way out, one that takes requests is still to come."""
        theirs = {word.said.status.state for word in self._recent.values()}
        return next((state for state in BEST_FIRST if state in theirs), State.LOADING)

    @property
    def engine_alive(self) -> bool:
        """Of any of the best of them."""
        statuses, best = [word.said.status for word in self._recent.values()], self.state
        return any(status.engine_alive for status in statuses if status.state is best)

    def last_progress(self) -> float | None:
        """When an engine last did something as far as they said; by the clock of `hear`."""
        return max((word.at - word.said.status.last_progress_s for word in self._recent.values()), default=None)

    @property
    def restarts(self) -> int:
        """Of all that there were, as `preemptions`; neither falls when a replica goes."""
        return sum(self._restarts.values())

    @property
    def preemptions(self) -> int:
        return sum(self._preemptions.values())

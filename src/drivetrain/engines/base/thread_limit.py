"""How many threads compute: fewer while other processes keep our cores busy.

The threads of a step meet a thousand times, and each time all wait for the one whose core somebody else has. One thread
fewer costs its share; one that waits for a time slice at each meeting costs nearly everything.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

from drivetrain.core.results import ComputeThreads
from drivetrain.engines.base.cores import CoreTimes, read_core_times
from drivetrain.telemetry.cores import bound_cores

_log = logging.getLogger(__name__)

WINDOW_S = 0.1
"""Of computing, before it is judged: ten of the ticks in which the system counts."""

TAKEN = 0.6
FREE = 0.3
"""From which share of a core on others have it, and up to which it is ours. A client on the same machine, or a server's
own front, needs about as much as lies between."""

CALM_WINDOWS = 3
"""In a row, before a thread more is taken."""

BETWEEN_LINES_S = 60.0
"""A neighbour that comes and goes must not fill the log."""


class ThreadLimit:
    """`begin` and `pause` around the work, `look` between steps, all on one thread; `threads` from anywhere.

    Only the time between `begin` and `pause` counts against us, added up over pauses: what runs while we do not is no
    neighbour, such as a server that takes turns with this one. A pause may only clear: if nobody used the cores in it,
    there is nobody to give way to.
    """

    def __init__(
        self,
        most: int,
        *,
        cores: int | None = None,
        read: Callable[[], CoreTimes | None] = read_core_times,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`most`: the threads to take when alone. `read` gives None where the cores' times are not known."""
        self.most = most
        self.now = most
        self._cores = cores or bound_cores()
        self._read = read
        self._clock = clock
        self._since: tuple[float, CoreTimes] | None = None
        """Where the span that runs began; in a pause, where the pause began."""
        self._read_at = -math.inf
        self._computing = False
        self._seen_s = self._foreign_s = 0.0
        """Of the window that is not full yet: its length, and what others used of the cores."""
        self._higher: list[int] = []
        self._told = False
        self._told_at = -math.inf

    @property
    def threads(self) -> ComputeThreads:
        return ComputeThreads(self.now, self.most)

    def begin(self) -> None:
        """Work begins, after a pause or for the first time."""
        paused_s, foreign_s = self._advance()
        self._computing = True
        if paused_s >= WINDOW_S and self._fitting(foreign_s / paused_s, FREE) == self.most:
            self._forget()
            self._take(self.most)

    def pause(self) -> None:
        """Nothing is left to do."""
        if self._computing:
            self._computing = False
            self._count(*self._advance())

    def look(self) -> int:
        """The number of threads for the next step."""
        if self._since is None:
            if self._clock() - self._read_at >= WINDOW_S:  # the last reading failed
                self._advance()
        elif self._seen_s + self._clock() - self._since[0] >= WINDOW_S:
            self._count(*self._advance())
            if self._seen_s >= WINDOW_S:
                self._judge(self._foreign_s / self._seen_s)
                self._seen_s = self._foreign_s = 0.0
        return self.now

    def _advance(self) -> tuple[float, float]:
        """Go on from here: the time since the last mark, and what others used of the cores in it."""
        before, at, times = self._since, self._clock(), self._read()
        self._read_at, self._since = at, None if times is None else (at, times)
        if before is None or times is None:
            return 0.0, 0.0
        busy_s, own_s = times.busy_s - before[1].busy_s, times.own_s - before[1].own_s
        return at - before[0], busy_s - own_s

    def _count(self, seconds: float, foreign_s: float) -> None:
        self._seen_s += seconds
        self._foreign_s += foreign_s

    def _judge(self, foreign: float) -> None:
        """Down at once, since it costs most of the speed; up when it has been calm for a while."""
        if (fewer := self._fitting(foreign, TAKEN)) < self.now:
            self._forget()
            self._take(fewer)
        elif (more := self._fitting(foreign, FREE)) > self.now:
            self._higher.append(more)
            if len(self._higher) == CALM_WINDOWS:
                more = min(self._higher)
                self._forget()
                self._take(more)
        else:
            self._forget()

    def _fitting(self, foreign: float, share: float) -> int:
        """Threads beside `foreign` cores of work, if a core counts as taken from `share` of it on."""
        taken = math.ceil(foreign - share)
        return self.most if taken <= 0 else max(1, min(self.most, self._cores - taken))

    def _forget(self) -> None:
        self._higher = []

    def _take(self, threads: int) -> None:
        self.now, before = threads, self.now
        at = self._clock()
        if threads < before == self.most and at - self._told_at >= BETWEEN_LINES_S:
            self._told, self._told_at = True, at
            _log.info("other processes keep the cores busy: computing with %d threads of %d", threads, self.most)
        elif threads == self.most and self._told:
            self._told = False
            _log.info("the cores are free again: computing with all %d threads", threads)

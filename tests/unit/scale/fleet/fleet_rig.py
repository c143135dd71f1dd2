"""A fleet whose models come and go when the test says so, on a clock that stands still."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, cast

from drivetrain.core.engine import Progress
from drivetrain.core.stats import Stats
from drivetrain.core.status import State
from drivetrain.core.worker import WorkerPort
from drivetrain.scale.fleet.fleet import Fleet
from drivetrain.scale.fleet.offer import Offer, Opened
from drivetrain.scale.fleet.policy import FleetLimits


class StubStatus:
    engine_alive = True
    lost = False


class StubWorker:
    """As much of a worker as the fleet looks at."""

    def __init__(self, book: Book, name: str) -> None:
        self._book = book
        self.name = name
        self.state = State.READY
        self.status = StubStatus()
        self.stats = Stats()
        self._stopping: asyncio.Task[None] | None = None

    async def drain(self, grace_s: float | None = None) -> None:
        self.state = State.DRAINING

    async def stop(self, grace_s: float | None = 0.0) -> None:
        """As the real one: once begun it goes on to the end, also if the call is cancelled."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        await self._book.gate(self._book.stopping, self.name)
        self.state = State.STOPPED
        self._book.alive[self.name] -= 1


class Book:
    """What was opened and stopped. With `by_hand`, each waits until the test lets it go on."""

    def __init__(self, *, by_hand: bool = False) -> None:
        self.by_hand = by_hand
        self.now = 1000.0
        self.free_bytes = float("inf")
        self.opening: dict[str, asyncio.Future[None]] = {}
        self.stopping: dict[str, asyncio.Future[None]] = {}
        self.alive: Counter[str] = Counter()
        self.opened: list[str] = []
        self.failures: dict[str, list[Exception]] = {}
        self.spoilt: dict[str, str] = {}

    async def gate(self, gates: dict[str, asyncio.Future[None]], name: str) -> None:
        if not self.by_hand:
            await asyncio.sleep(0)
            return
        gates[name] = asyncio.get_running_loop().create_future()
        try:
            await gates[name]
        finally:
            del gates[name]

    def offer(self, name: str, **more: Any) -> Offer:
        async def open_worker(report: Progress) -> Opened:
            report("reading", 0.5)
            await self.gate(self.opening, name)
            if self.failures.get(name):
                raise self.failures[name].pop(0)
            self.opened.append(name)
            self.alive[name] += 1
            return cast("Opened", StubWorker(self, name))

        return Offer(name=name, open=open_worker, **{"spoilt": lambda: self.spoilt.get(name, ""), **more})

    def fleet(self, *offers: Offer, **limits: Any) -> Fleet:
        return Fleet(offers, FleetLimits(**limits), free_bytes=lambda: self.free_bytes, clock=lambda: self.now)


async def settle() -> None:
    """Let everything run that can."""
    for _ in range(12):
        await asyncio.sleep(0)


def name_of(worker: WorkerPort) -> str:
    return cast("StubWorker", worker).name

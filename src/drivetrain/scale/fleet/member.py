"""One model of the fleet: its stage, who holds it, who waits for it. Only the fleet changes it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from drivetrain.core.errors import Cancelled, DeadlineExceeded, DrivetrainError, InvalidRequest, Overloaded
from drivetrain.core.parameters import PARAMETERS
from drivetrain.core.stats import Stats, ending
from drivetrain.core.status import State
from drivetrain.core.worker import WorkerPort
from drivetrain.scale.fleet.failure import LAST_RETRY_S, retry_after_s
from drivetrain.scale.fleet.offer import Offer, Opened
from drivetrain.scale.fleet.policy import Seat, Stage
from drivetrain.telemetry.ids import id_here
from drivetrain.telemetry.logs import FIELDS

_requests = logging.getLogger("drivetrain.requests")


class Lease:
    """A request's hold on one model: while it is held, the model stays loaded.

    It is granted at once if the model is loaded; otherwise `wait` for it. Whoever has one calls `release` in the end.

    `left_s` is what the wait left of the request's time; None if there was no wait.
    `unserved` is how the request ended if it did not get the worker; None if it did.
    """

    __slots__ = ("_future", "_join", "_leave", "_limit_s", "left_s", "name", "since", "unserved", "worker")

    def __init__(
        self, name: str, limit_s: float, *, since: float, join: Callable[[Lease], None], leave: Callable[[Lease], None]
    ) -> None:
        """`join` stands in line, and raises if the model cannot be loaded; `leave` undoes that or returns the hold."""
        self.name = name
        self._join = join
        self._leave: Callable[[Lease], None] | None = leave
        self._limit_s = limit_s
        self._future: asyncio.Future[WorkerPort] | None = None
        self.worker: WorkerPort | None = None
        self.left_s: float | None = None
        self.unserved: str | None = Cancelled.code
        self.since = since

    async def wait(self) -> WorkerPort:
        """Raises `DeadlineExceeded` when the request's time is over. Cancelling it leaves nothing."""
        if self.worker is not None:
            return self.worker
        assert self._leave is not None
        loop = asyncio.get_running_loop()
        self._future, end = loop.create_future(), loop.time() + self._limit_s
        try:
            self._join(self)
            async with asyncio.timeout_at(end):
                worker = await self._future
        except TimeoutError:
            self.unserved = DeadlineExceeded.code
            self.release()
            raise DeadlineExceeded(f"the model was not loaded within the request's {self._limit_s:g} seconds") from None
        except BaseException as exc:
            self.unserved = ending(exc)
            self.release()
            raise
        self.unserved = None
        self.left_s = max(0.001, end - loop.time())
        return worker

    def release(self) -> None:
        """Idempotent."""
        leave, self._leave = self._leave, None
        if leave is not None:
            leave(self)

    # For the fleet

    @property
    def waits(self) -> bool:
        """No longer once its time is over or it was given up."""
        return self._future is not None and not self._future.done()

    def grant(self, worker: WorkerPort) -> None:
        self.worker = worker
        if self._future is None:
            self.unserved = None
        elif not self._future.done():
            self._future.set_result(worker)

    def refuse(self, error: DrivetrainError) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_exception(error)

    # As a context

    async def __aenter__(self) -> WorkerPort:
        return await self.wait()

    async def __aexit__(self, *exc: object) -> None:
        self.release()


@dataclass(slots=True, eq=False)
class Member:
    """Times are by the fleet's clock. `owned` is None for a worker that somebody else opened and will stop."""

    offer: Offer
    stage: Stage = Stage.UNLOADED
    worker: WorkerPort | None = None
    owned: Opened | None = None
    pinned: bool = False
    reserved: bool = False
    leases: int = 0
    line: deque[Lease] = field(default_factory=deque)
    asked_at: float | None = None
    """When an administrator asked for it to be loaded; None once it is."""
    size_bytes: int = 0
    last_used: float = 0.0
    loaded_at: float = 0.0
    doing: tuple[str, float | None] | None = None
    failure: str = ""
    failures: int = 0
    retry_at: float = 0.0
    device_lost: bool = False
    """Whether it lost its device for as long as this process lives."""
    num_loads: int = 0
    num_failed_loads: int = 0
    num_unloads: int = 0

    @property
    def name(self) -> str:
        return self.offer.name

    @property
    def aliases(self) -> tuple[str, ...]:
        return self.offer.aliases

    @property
    def state(self) -> str:
        """In one word, for people and machines."""
        return self.worker.state.value if self.worker is not None else self.stage.value

    @property
    def num_waiting(self) -> int:
        """Requests that wait until it is loaded, without those in its worker's queue."""
        return len(self.line)

    @property
    def serves(self) -> bool:
        """Whether it takes requests and its engine lives."""
        worker = self.worker
        return worker is not None and worker.state is State.READY and worker.status.engine_alive

    @property
    def broken(self) -> bool:
        """Whether the worker that was loaded here will never serve again."""
        return self.owned is not None and self.owned.state is State.FAILED

    @property
    def borrowed(self) -> bool:
        """Whether its worker was opened elsewhere, so that it cannot be loaded again here."""
        return self.worker is not None and self.owned is None

    @property
    def lost(self) -> bool:
        """Whether only a new process helps: its device is lost, or it failed and cannot be loaded again here."""
        worker = self.worker
        failed = worker is not None and worker.state is State.FAILED and (self.borrowed or worker.status.lost)
        return self.device_lost or failed

    @property
    def should_serve(self) -> bool:
        """Whether it is loaded or pinned, or its broken engine is still being unloaded, which may hang."""
        leaves_broken = self.stage is Stage.UNLOADING and self.failure != ""
        return self.pinned or self.worker is not None or leaves_broken or self.device_lost

    @property
    def stats(self) -> Stats:
        return self.offer.stats

    def seat(self, now: float, *, keep_pinned: bool = True) -> Seat:
        """`keep_pinned`: a pinned model is wanted even if nobody waits for it."""
        wishes = [self.line[0].since] if self.line else []
        if self.asked_at is not None:
            wishes.append(self.asked_at)
        if keep_pinned and self.pinned and self.stage in {Stage.UNLOADED, Stage.FAILED} and now >= self.retry_at:
            wishes.append(0.0)
        return Seat(
            name=self.name,
            stage=self.stage,
            leases=self.leases,
            pinned=self.pinned or self.borrowed,
            size_bytes=self.size_bytes,
            last_used=self.last_used,
            loaded_at=self.loaded_at,
            wanted_since=min(wishes, default=None),
        )

    def wait_limit_s(self, timeout_s: float | None) -> float:
        """How long a request with this timeout may wait. Raises `InvalidRequest`."""
        limit = self.offer.max_timeout_s
        if timeout_s is None:
            return min(self.offer.timeout_s, limit)
        PARAMETERS["timeout_s"].kind.judge("timeout_s", timeout_s)
        if timeout_s > limit:
            raise InvalidRequest(f"timeout_s is {timeout_s:,}; the limit is {limit:,}", param="timeout_s")
        return timeout_s

    def grant(self, lease: Lease) -> None:
        """Of a model that is loaded."""
        assert self.worker is not None
        self.leases += 1
        lease.grant(self.worker)

    def join(self, lease: Lease) -> None:
        """Raises `Overloaded` if too many wait already. One always may, or the model would never be loaded."""
        if len(self.line) >= max(1, self.offer.max_waiting):
            raise Overloaded(
                f"{len(self.line)} requests are already waiting for {self.name} to load; try again shortly"
            )
        self.line.append(lease)

    def unserved(self, how: str) -> None:
        """Count and log a request that ended before it reached the worker."""
        self.stats.endings[how] += 1
        fields = {"request_id": id_here(), "model": self.name, "ending": how}
        _requests.info("%s %s %s without a worker", *fields.values(), extra={FIELDS: fields})

    def ask(self, now: float) -> None:
        """Load it as soon as there is room, whatever went wrong before."""
        self.asked_at, self.retry_at, self.doing = now, 0.0, ("waiting for room", None)

    def withdraw(self) -> None:
        self.asked_at = self.doing = None

    def loaded(self, worker: Opened, now: float) -> None:
        self.stage, self.worker, self.owned = Stage.READY, worker, worker
        self.loaded_at = self.last_used = now
        self.failure, self.retry_at = "", 0.0
        self.withdraw()
        self.num_loads += 1

    def failed(self, why: str, now: float) -> None:
        self.stage, self.failure = Stage.FAILED, why
        self.withdraw()
        self.failures += 1
        self.num_failed_loads += 1
        self.retry_at = now + retry_after_s(self.failures)

    def gave_up(self, now: float) -> None:
        """Its worker will never serve again, but a new one may. If that one fails soon too, the next has to wait."""
        self.failure = "its engine failed and could not be restarted"
        self.failures = self.failures + 1 if now - self.loaded_at < LAST_RETRY_S else 1
        self.retry_at = now + retry_after_s(self.failures - 1) if self.failures > 1 else 0.0

    def leaves(self) -> Opened:
        """Take its worker away, so that nobody gets it any more."""
        owned = self.owned
        assert owned is not None
        assert not self.leases
        if not self.failure:
            self.failures = 0
        self.device_lost |= owned.status.lost
        self.stage, self.worker, self.owned = Stage.UNLOADING, None, None
        return owned

    def left(self) -> None:
        self.stage = Stage.FAILED if self.failure else Stage.UNLOADED
        self.num_unloads += 1

    def report(self, now: float) -> dict[str, Any]:
        """All of it, for administrators."""
        doing = self.doing if self.stage is Stage.LOADING or self.asked_at is not None else None
        retry_in_s = round(max(0.0, self.retry_at - now), 3)
        return {
            "id": self.name,
            "object": "admin.model",
            "state": self.state,
            "aliases": list(self.aliases),
            "pinned": self.pinned,
            "in_use": self.leases,
            "waiting": len(self.line),
            "idle_s": round(now - self.last_used, 3) if self.worker is not None and not self.leases else None,
            "loaded_s": round(now - self.loaded_at, 3) if self.worker is not None else None,
            "size_bytes": self.size_bytes or None,
            "progress": None if doing is None else {"what": doing[0], "share": doing[1]},
            "failure": {"message": self.failure, "retry_in_s": retry_in_s} if self.failure else None,
            "loads": self.num_loads,
            "failed_loads": self.num_failed_loads,
            "unloads": self.num_unloads,
        }

"""A request's hold on one model: while it is held, the model stays loaded."""

from __future__ import annotations

import asyncio
from typing import Protocol

from drivetrain.core.errors import Cancelled, DeadlineExceeded, DrivetrainError
from drivetrain.core.stats import ending
from drivetrain.core.worker import Worker


class Holder(Protocol):
    """What a lease needs of the fleet, for the one model that it is of."""

    def join(self, lease: Lease) -> None:
        """Stand in line. Raises what keeps it from being loaded at all."""
        ...

    def leave(self, lease: Lease) -> None:
        """Out of the line, or give back what was granted."""
        ...


class Lease:
    """Granted at once where the model is loaded; else `wait`. Whoever has one calls `release`, whatever happened.

    `left_s` is what the wait left of the request's time; None for one that did not have to wait.
    `unserved` is how its request ended that did not get the worker, None for one that did.
    """

    __slots__ = ("_future", "_holder", "_limit_s", "left_s", "name", "since", "unserved", "worker")

    def __init__(self, holder: Holder, name: str, limit_s: float, *, since: float) -> None:
        self.name = name
        self._holder: Holder | None = holder
        self._limit_s = limit_s
        self._future: asyncio.Future[Worker] | None = None
        self.worker: Worker | None = None
        self.left_s: float | None = None
        self.unserved: str | None = Cancelled.code
        self.since = since

    async def wait(self) -> Worker:
        """Within the request's time; `DeadlineExceeded` after it. Cancelling it leaves nothing."""
        if self.worker is not None:
            return self.worker
        assert self._holder is not None
        loop = asyncio.get_running_loop()
        self._future, end = loop.create_future(), loop.time() + self._limit_s
        try:
            self._holder.join(self)
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
        holder, self._holder = self._holder, None
        if holder is not None:
            holder.leave(self)

    # For the fleet

    @property
    def waits(self) -> bool:
        """Not any more once its time is over or it was given up."""
        return self._future is not None and not self._future.done()

    def grant(self, worker: Worker) -> None:
        self.worker = worker
        if self._future is None:
            self.unserved = None
        elif not self._future.done():
            self._future.set_result(worker)

    def refuse(self, error: DrivetrainError) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_exception(error)

    # As a context

    async def __aenter__(self) -> Worker:
        return await self.wait()

    async def __aexit__(self, *exc: object) -> None:
        self.release()

"""A request's hold on a model of the fleet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from drivetrain.core.errors import Cancelled, DeadlineExceeded, DrivetrainError
from drivetrain.core.stats import ending
from drivetrain.core.worker import WorkerPort


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

"""The gate: so many requests run, so many wait in order, one more is refused, before any work is done for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

from drivetrain.core.errors import DrivetrainError, NotReady, Overloaded


class Slot:
    """The right to run. Released exactly once, however often `release` is called."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()


class Ticket:
    """A place in the queue. `wait` returns the slot; `give_up` makes it raise, and nothing is left behind."""

    def __init__(self, slot: asyncio.Future[Slot], leave: Callable[[asyncio.Future[Slot]], None]) -> None:
        self._slot = slot
        self._leave = leave

    async def wait(self) -> Slot:
        try:
            return await asyncio.shield(self._slot)
        except BaseException:
            self._withdraw()
            raise

    def give_up(self, error: DrivetrainError) -> None:
        if not self._slot.done():
            self._leave(self._slot)
            self._slot.set_exception(error)

    def _withdraw(self) -> None:
        if not self._slot.done():
            self._leave(self._slot)
            self._slot.cancel()
        elif not self._slot.cancelled() and self._slot.exception() is None:
            self._slot.result().release()


class Admission:
    """`alive` tells whether the engine can do anything at all."""

    def __init__(self, *, max_running: int, max_waiting: int, alive: Callable[[], bool] = lambda: True) -> None:
        self._max_running = max_running
        self._alive = alive
        self._max_waiting = max_waiting
        self._waiting: deque[asyncio.Future[Slot]] = deque()
        self._running = 0
        self._closed: str = ""
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def running(self) -> int:
        return self._running

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def enter(self) -> Ticket:
        """A place, at once. Raises `NotReady` when closed or dead, and `Overloaded` when the queue is full."""
        if self._closed:
            raise NotReady(self._closed, retry_after_s=5.0)
        if not self._alive():
            raise NotReady("the engine has ended; if it does not come back, start the worker anew", retry_after_s=5.0)
        future: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()
        if self._running < self._max_running and not self._waiting:
            self._grant(future)
        elif len(self._waiting) < self._max_waiting:
            self._waiting.append(future)
        else:
            raise Overloaded(
                f"{self._running} requests run and {len(self._waiting)} wait, which is all this worker takes; "
                "try again shortly",
                retry_after_s=1.0,
            )
        return Ticket(future, self._waiting.remove)

    def close(self, why: str) -> None:
        """Refuse from now on, those that wait included."""
        self._closed = why
        while self._waiting:
            self._waiting.popleft().set_exception(NotReady(why, retry_after_s=5.0))

    async def idle(self, timeout_s: float) -> bool:
        """Wait until nothing runs; False if something still does when the time is up."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        return self._running == 0

    def _grant(self, future: asyncio.Future[Slot]) -> None:
        self._running += 1
        self._idle.clear()
        future.set_result(Slot(self._release))

    def _release(self) -> None:
        self._running -= 1
        while self._waiting and self._running < self._max_running:
            self._grant(self._waiting.popleft())
        if not self._running:
            self._idle.set()

"""The gate: a limited number of requests run, a limited number wait in order; the rest are refused without any work."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

from drivetrain.core.errors import DeviceLost, DrivetrainError, NotReady, OutOfMemory, Overloaded

ATTEMPTS = 2
"""For a request whose engine failed before it gave out anything. A request that kills engines can kill two at most."""


class Slot:
    """The right to run on one engine. Released exactly once, however often `release` is called."""

    def __init__(self, release: Callable[[], None], is_good: Callable[[], bool]) -> None:
        self._release: Callable[[], None] | None = release
        self._is_good = is_good

    @property
    def is_good(self) -> bool:
        """Whether its engine is still the one that serves."""
        return self._is_good()

    def release(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()


class Ticket:
    """A place in the queue. `wait` returns the slot; cancelling it leaves nothing behind."""

    def __init__(self, admission: Admission, slot: asyncio.Future[Slot]) -> None:
        self._admission = admission
        self._slot = slot

    async def wait(self) -> Slot:
        """If the engine failed after it granted the slot, the slot is worthless: queue again."""
        try:
            while not (slot := await asyncio.shield(self._slot)).is_good:
                slot.release()
                self._slot = self._admission.join_again()
            return slot
        except BaseException:
            self._withdraw()
            raise

    def _withdraw(self) -> None:
        if not self._slot.done():
            self._admission.leave(self._slot)
            self._slot.cancel()
        elif not self._slot.cancelled() and self._slot.exception() is None:
            self._slot.result().release()


class Admission:
    """`alive` tells whether the engine can do anything at all.

    Requests wait for any engine, not for this one: while it is replaced, the queue is held and then continues.
    `patient` tells whether an engine that is not alive will be replaced, even before `hold` is called.
    """

    def __init__(
        self,
        *,
        max_running: int,
        max_waiting: int,
        alive: Callable[[], bool] = lambda: True,
        patient: Callable[[], bool] = lambda: False,
    ) -> None:
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._alive = alive
        self._patient = patient
        self._returned: deque[asyncio.Future[Slot]] = deque()
        """Requests that had a slot on an engine that failed. They come first; there are no more of them than ran."""
        self._waiting: deque[asyncio.Future[Slot]] = deque()
        self._running = 0
        self._num_engines = 0
        self._held = False
        self._closed: str = ""
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def running(self) -> int:
        return self._running

    @property
    def waiting(self) -> int:
        return len(self._returned) + len(self._waiting)

    @property
    def waits_for_engine(self) -> bool:
        """Whether the engine has failed and will be replaced."""
        return not self._closed and (self._held or (self._patient() and not self._alive()))

    def enter(self) -> Ticket:
        """Queue up. Raises `NotReady` if closed or the engine is dead, `Overloaded` if the queue is full."""
        self._refuse_if_closed()
        waits = self.waits_for_engine
        if not waits and not self._alive():
            raise NotReady("the engine stopped; if it does not recover, restart the worker", retry_after_s=5.0)
        future: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()
        if not waits and self._running < self._max_running and not self.waiting:
            self._grant(future)
        elif len(self._waiting) < self._max_waiting:
            self._waiting.append(future)
        else:
            raise Overloaded(
                f"the worker is full: {self._running} requests are running and {len(self._waiting)} waiting; "
                "try again shortly",
                retry_after_s=1.0,
            )
        return Ticket(self, future)

    def spare(self) -> Slot | None:
        """A slot for a request that has one and could use another, if nobody waits for it."""
        if self._closed or self.waiting or not self._alive() or self._held or self._running >= self._max_running:
            return None
        return self._taken()

    def goes_on(self, slot: Slot, error: DrivetrainError) -> bool:
        """Whether a request that failed with `error` may continue on the engine that replaces this slot's."""
        failed = not slot.is_good or self.waits_for_engine
        return failed and not isinstance(error, (OutOfMemory, DeviceLost))

    def enter_again(self) -> Ticket:
        """Queue up again after the engine failed, ahead of requests that never ran. Raises `NotReady`."""
        return Ticket(self, self.join_again())

    def join_again(self) -> asyncio.Future[Slot]:
        self._refuse_if_closed()
        future: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()
        self._returned.append(future)
        self._admit()
        return future

    def leave(self, future: asyncio.Future[Slot]) -> None:
        (self._returned if future in self._returned else self._waiting).remove(future)

    def hold(self) -> None:
        """The engine has failed: its slots are worthless, and no more are granted until `open`."""
        self._held = True
        self._num_engines += 1
        self._running = 0
        self._idle.set()

    def open(self, max_running: int) -> None:
        """The first engine, or the next one, serves."""
        self._max_running, self._held = max_running, False
        self._admit()

    def close(self, why: str) -> None:
        """Refuse all requests from now on, waiting ones included."""
        self._closed = why
        for line in (self._returned, self._waiting):
            while line:
                line.popleft().set_exception(NotReady(why, retry_after_s=5.0))

    async def idle(self, timeout_s: float) -> bool:
        """Wait until nothing runs. False if something still does after `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        return self._running == 0

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise NotReady(self._closed, retry_after_s=5.0)

    def _admit(self) -> None:
        while self._running < self._max_running and self.waiting and not self.waits_for_engine:
            self._grant((self._returned or self._waiting).popleft())

    def _grant(self, future: asyncio.Future[Slot]) -> None:
        future.set_result(self._taken())

    def _taken(self) -> Slot:
        self._running += 1
        self._idle.clear()
        engine = self._num_engines
        return Slot(lambda: self._release(engine), lambda: self._num_engines == engine)

    def _release(self, engine: int) -> None:
        if engine != self._num_engines:
            return  # `hold` already took it back
        self._running -= 1
        self._admit()
        if not self._running:
            self._idle.set()

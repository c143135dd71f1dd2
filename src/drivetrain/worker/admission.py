"""The gate: a limited number of requests run, a limited number wait in order; the rest are refused without any work."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable
from enum import Enum, auto

from drivetrain.core.errors import DeviceLost, DrivetrainError, NotReady, OutOfMemory, Overloaded

ATTEMPTS = 2
"""For a request whose engine failed before it gave out anything. A request that kills engines can kill two at most."""


class Suspicion(Enum):
    """Whether a request that starts again may have been what its engine failed of."""

    NONE = auto()
    """It had not reached the engine."""
    LIGHT = auto()
    """It was in the engine."""
    GRAVE = auto()
    """It was in the engine, which had something of the request's own to compile or to decode."""


class Slot:
    """The right to run on one engine. Released exactly once, however often `release` is called."""

    def __init__(self, gate: Admission, engine: int, suspicion: Suspicion) -> None:
        self._gate = gate
        self._engine = engine
        self._suspicion = suspicion
        self._proven = False
        self._released = False

    @property
    def is_good(self) -> bool:
        """Whether its engine is still the one that serves."""
        return self._gate.serves(self._engine)

    def prove(self) -> None:
        """The engine has answered the request: where it ran alone, others may now run beside it."""
        if self._suspicion is not Suspicion.NONE and not self._proven and not self._released:
            self._proven = True
            self._gate.proven(self._engine, self._suspicion)

    def release(self) -> None:
        if not self._released:
            self._released = True
            self._gate.released(self._engine, self._suspicion, was_proven=self._proven)


class Ticket:
    """A place in the queue. `wait` returns the slot; cancelling it leaves nothing behind."""

    def __init__(self, admission: Admission, slot: asyncio.Future[Slot], suspicion: Suspicion = Suspicion.NONE) -> None:
        self._admission = admission
        self._slot = slot
        self._suspicion = suspicion

    @property
    def granted(self) -> bool:
        return self._slot.done()

    async def wait(self) -> Slot:
        """If the engine failed after it granted the slot, the slot is worthless: queue again."""
        try:
            while not (slot := await asyncio.shield(self._slot)).is_good:
                slot.release()
                self._slot = self._admission.join_again(self._suspicion)
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

    A suspect, which was in an engine when that failed, starts again before all others and alone: nobody else is let
    in until the engine has answered it. Then the next one may start beside it: first the grave ones, each beside
    other grave ones only, then the rest.
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
        self._suspects: deque[tuple[asyncio.Future[Slot], Suspicion]] = deque()
        self._returned: deque[asyncio.Future[Slot]] = deque()
        """Requests that had a slot on an engine that failed, and had not reached it. They, and suspects, come first;
        there are no more of them than ran."""
        self._waiting: deque[asyncio.Future[Slot]] = deque()
        self._running = 0
        self._proven: Counter[Suspicion] = Counter()
        """Suspects among them that the engine has answered."""
        self._running_alone = False
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
        return len(self._suspects) + len(self._returned) + len(self._waiting)

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
        if not waits and self._has_room and not self.waiting:
            future.set_result(self._taken())
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
        if self._closed or self.waiting or not self._alive() or self._held or not self._has_room:
            return None
        return self._taken()

    @property
    def _has_room(self) -> bool:
        return self._running < self._max_running and not self._running_alone

    def goes_on(self, slot: Slot, error: DrivetrainError) -> bool:
        """Whether a request that failed with `error` may continue on the engine that replaces this slot's.

        One that ran out of memory would do so again; but where the engine died of it, nobody knows whose memory it was.
        """
        failed = not slot.is_good or self.waits_for_engine
        own_fault = isinstance(error, OutOfMemory) and not error.ended_engine
        return failed and not own_fault and not isinstance(error, DeviceLost)

    def enter_again(self, suspicion: Suspicion) -> Ticket:
        """Queue up again after the engine failed, ahead of requests that never ran. Raises `NotReady`."""
        return Ticket(self, self.join_again(suspicion), suspicion)

    def join_again(self, suspicion: Suspicion) -> asyncio.Future[Slot]:
        self._refuse_if_closed()
        future: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()
        if suspicion is Suspicion.NONE:
            self._returned.append(future)
        elif suspicion is Suspicion.GRAVE:
            graves = sum(of is Suspicion.GRAVE for _, of in self._suspects)
            self._suspects.insert(graves, (future, suspicion))
        else:
            self._suspects.append((future, suspicion))
        self._admit()
        return future

    def leave(self, future: asyncio.Future[Slot]) -> None:
        """A suspect that leaves may have been what the others waited for."""
        for line in (self._returned, self._waiting):
            if future in line:
                line.remove(future)
                return
        self._suspects = deque(suspect for suspect in self._suspects if suspect[0] is not future)
        self._admit()

    def hold(self) -> None:
        """The engine has failed: its slots are worthless, and no more are granted until `open`."""
        self._held = True
        self._num_engines += 1
        self._running = 0
        self._proven.clear()
        self._running_alone = False
        self._idle.set()

    def open(self, max_running: int) -> None:
        """The first engine, or the next one, serves."""
        self._max_running, self._held = max_running, False
        self._admit()

    def close(self, why: str) -> None:
        """Refuse all requests from now on, waiting ones included."""
        self._closed = why
        self._returned.extend(future for future, _ in self._suspects)
        self._suspects.clear()
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
        while self._has_room and self.waiting and not self.waits_for_engine:
            if not self._suspects:
                (self._returned or self._waiting).popleft().set_result(self._taken())
            elif self._may_suspect_start(self._suspects[0][1]):
                future, suspicion = self._suspects.popleft()
                future.set_result(self._taken(suspicion))
            else:
                return

    def _may_suspect_start(self, suspicion: Suspicion) -> bool:
        """One that is grave may hurt all that run, so only those of its kind; the others only beside what has been in
        danger once and passed."""
        grave = self._proven[Suspicion.GRAVE]
        return self._running == (grave if suspicion is Suspicion.GRAVE else grave + self._proven[Suspicion.LIGHT])

    def _taken(self, suspicion: Suspicion = Suspicion.NONE) -> Slot:
        self._running += 1
        self._running_alone = suspicion is not Suspicion.NONE
        self._idle.clear()
        return Slot(self, self._num_engines, suspicion)

    # For slots

    def serves(self, engine: int) -> bool:
        return engine == self._num_engines

    def proven(self, engine: int, suspicion: Suspicion) -> None:
        if self.serves(engine):
            self._running_alone = False
            self._proven[suspicion] += 1
            self._admit()

    def released(self, engine: int, suspicion: Suspicion, *, was_proven: bool) -> None:
        if not self.serves(engine):
            return  # `hold` already took it back
        self._running -= 1
        if was_proven:
            self._proven[suspicion] -= 1
        elif suspicion is not Suspicion.NONE:
            self._running_alone = False
        self._admit()
        if not self._running:
            self._idle.set()

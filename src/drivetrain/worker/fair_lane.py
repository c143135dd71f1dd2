"""Threads on which callers take turns, so that one with much work does not keep the others waiting."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from drivetrain.core.errors import NotReady
from drivetrain.worker.off_loop import on_thread

T = TypeVar("T")

PLACES = 4
"""Pieces of work at once: more threads than cores, so that what takes long shares them with what does not."""

FOR_HEAVY = 2
"""Of these places, for all callers together whose last work took long."""

HEAVY_S = 1.0

MAX_NOTED = 1000
"""Callers whose last work took long."""


class FairLane:
    """A caller has one place at most; who waits is served in turn, caller by caller. Call it on one event loop."""

    def __init__(
        self,
        name: str,
        *,
        places: int = PLACES,
        for_heavy: int = FOR_HEAVY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._threads = ThreadPoolExecutor(places, thread_name_prefix=f"drivetrain-{name}")
        self._free = places
        self._for_heavy = for_heavy
        self._clock = clock
        self._running: set[str] = set()
        self._heavy: OrderedDict[str, None] = OrderedDict()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def run(self, work: Callable[[], T], caller: str = "") -> T:
        """The work's result. Nothing is done for a caller that has left; one that leaves amid it keeps the place until
        its thread is free.

        Raises `NotReady` once the lane is closed.
        """
        await self._turn(caller)
        began, loop = self._clock(), asyncio.get_running_loop()

        def over() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._worked, caller, began)

        try:
            return await on_thread(self._threads, work, over=over)
        except NotReady:
            self._refuse_all()
            raise

    def close(self) -> None:
        """Blocks until the work under way is done. Waiting callers get `NotReady`."""
        self._threads.shutdown(cancel_futures=True)
        self._refuse_all()

    async def _turn(self, caller: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(turn)
        self._serve()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._leave(caller)  # it had just been given a place
            raise

    def _serve(self) -> None:
        while self._free and (caller := self._next()) is not None:
            queue = self._waiting[caller]
            turn = queue.popleft()
            if queue:
                self._waiting.move_to_end(caller)
            else:
                del self._waiting[caller]
            if not turn.done():
                self._free -= 1
                self._running.add(caller)
                turn.set_result(None)

    def _next(self) -> str | None:
        """Who waited longest among those that may have a place now."""
        full = sum(caller in self._heavy for caller in self._running) >= self._for_heavy
        fitting = (c for c in self._waiting if c not in self._running and not (full and c in self._heavy))
        return next(fitting, None)

    def _worked(self, caller: str, began: float) -> None:
        self._heavy.pop(caller, None)
        if self._clock() - began >= HEAVY_S:
            self._heavy[caller] = None
            if len(self._heavy) > MAX_NOTED:
                self._heavy.popitem(last=False)
        self._leave(caller)

    def _leave(self, caller: str) -> None:
        self._free += 1
        self._running.discard(caller)
        self._serve()

    def _refuse_all(self) -> None:
        for turn in [turn for queue in self._waiting.values() for turn in queue]:
            if not turn.done():
                turn.set_exception(NotReady("the worker is stopped"))
        self._waiting.clear()

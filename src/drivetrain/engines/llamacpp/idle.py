"""Waiting until llama.cpp has really let go of a slot after its connection was closed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from drivetrain.engines.base.tasks import uninterrupted
from drivetrain.engines.llamacpp import errors
from drivetrain.engines.llamacpp.child.connection import ChildConnection

FIRST_PAUSE_S = 0.001
LONGEST_PAUSE_S = 0.05

STUCK_S = 30.0
"""Without an answer, where it works on a constraint that nobody waits for any more. A step of a large model may take
longer: three times the longest that an answer took is never too long."""

_log = logging.getLogger(__name__)


class SlotWatch:
    """Asks for the state of the slots while anybody waits for one, one question at a time for all who wait.

    The answer tells of all slots, and llama.cpp gives it between two of its steps: a question each would hold up the
    others, and us, by the square of those who leave at once.

    Nothing stops llama.cpp in the middle of compiling a constraint. If that takes too long for one who has left, `end`
    is called, which ends the process.
    """

    def __init__(self, connection: ChildConnection, alive: Callable[[], bool], end: Callable[[], None]) -> None:
        self._connection = connection
        self._alive = alive
        self._end = end
        self._longest_s = 0.0
        self._waiting: dict[asyncio.Future[None], int] = {}
        self._compiling: set[asyncio.Future[None]] = set()
        """Those among them whose constraint may still be compiled."""
        self._come = asyncio.Event()
        self._asking: asyncio.Task[None] | None = None

    async def until_idle(self, slot: int, *, compiling: bool = False) -> None:
        """Returns at most one step of the server later. Cancelling does not cut it short; it is raised afterwards.

        `compiling`: nothing was heard yet of a request with a constraint.
        """
        idle = asyncio.get_running_loop().create_future()
        self._waiting[idle] = slot
        if compiling:
            self._compiling.add(idle)
            idle.add_done_callback(self._compiling.discard)
        self._come.set()
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask_on(), name="drivetrain-llamacpp-slots")
            self._asking.add_done_callback(self._settle)
        await uninterrupted(idle)

    def _settle(self, asking: asyncio.Task[None]) -> None:
        """Nobody waits for ever, whatever ended it: it may have been cancelled before it began."""
        if asking is not self._asking:
            return  # the next one asks for all who wait
        self._asking = None
        exc = None if asking.cancelled() else asking.exception()
        waiting, self._waiting = self._waiting, {}
        for idle in waiting:
            if exc is None:
                idle.set_result(None)
            else:
                idle.set_exception(errors.while_running(exc))

    async def _ask_on(self) -> None:
        """Until nobody waits, or llama.cpp has ended: then all slots are idle."""
        pause_s = FIRST_PAUSE_S
        while self._waiting and self._alive():
            asked = dict(self._waiting)  # who comes later may not have been let go when the answer was made
            self._come.clear()
            busy = await self._busy()
            for idle, slot in asked.items():
                if busy is not None and slot not in busy:
                    del self._waiting[idle]
                    idle.set_result(None)
            if not self._waiting:
                return
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S) if await self._pause(pause_s) else FIRST_PAUSE_S

    async def _busy(self) -> set[int] | None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        looking = loop.call_later(max(STUCK_S, 3 * self._longest_s), self._end_if_compiling)
        try:
            slots = await self._connection.ask("GET", "/slots")
        except (OSError, EOFError):
            return None
        finally:
            looking.cancel()
        self._longest_s = max(self._longest_s, loop.time() - began)
        return {int(slot["id"]) for slot in slots if slot["is_processing"]}

    def _end_if_compiling(self) -> None:
        if self._compiling:
            _log.error("llama.cpp is ended: it works on nothing but a constraint that nobody waits for any more")
            self._end()

    async def _pause(self, pause_s: float) -> bool:
        """False if it was cut short, since somebody has come."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._come.wait()
                return False
        return True

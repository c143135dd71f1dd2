"""The way from an engine to the sink of one request: nothing passes after the end, and the end is told once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from drivetrain.core.engine import Step, StepSink
from drivetrain.core.errors import DrivetrainError


class StepChannel:
    """The `RequestHandle` of every engine here. All methods run on the event loop.

    The engine's side calls `push` and, once the request holds nothing any more, `release`. `on_abort` and `on_finish`
    tell the engine; they must not block.
    """

    __slots__ = ("_on_abort", "_on_finish", "_sink", "aborted", "released")

    def __init__(self, sink: StepSink, *, on_abort: Callable[[], None], on_finish: Callable[[int], None]) -> None:
        self._sink = sink
        self._on_abort = on_abort
        self._on_finish = on_finish
        self.released = False
        self.aborted = False

    def push(self, step: Step) -> None:
        if not self.released and not self.aborted:
            self._sink.take(step)

    def release(self, error: DrivetrainError | None = None) -> None:
        """The resources are free. `error` is what kept the request from finishing.

        Whoever keeps this longer keeps nothing else with it: neither the request, nor what the engine had for it.
        """
        if not self.released:
            self.released = True
            sink = self._sink
            del self._sink, self._on_abort, self._on_finish
            sink.close(error)

    def finish(self, index: int) -> None:
        if not self.released and not self.aborted:
            self._on_finish(index)

    def abort(self) -> None:
        if not self.released and not self.aborted:
            self.aborted = True
            self._on_abort()


class Ending:
    """A sink for what has no steps: it waits for the end."""

    def __init__(self) -> None:
        self._released: asyncio.Future[DrivetrainError | None] = asyncio.get_running_loop().create_future()

    def take(self, step: Step) -> None:
        raise AssertionError("a call without steps had one")

    def close(self, error: DrivetrainError | None) -> None:
        if not self._released.done():
            self._released.set_result(error)

    async def wait(self) -> None:
        """Raises what it ended with. Cancelling it leaves the end to be waited for again."""
        if (error := await asyncio.shield(self._released)) is not None:
            raise error

"""The way from an engine to the reader of one request: steps cross here, and the ending is settled here."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Self

from drivetrain.core.engine import Step
from drivetrain.core.errors import Cancelled, DrivetrainError

AT_ONCE = 256
"""Steps of a backlog that a follower gets in one turn of the loop."""


class StepChannel:
    """The `EngineStream` of every engine here. All methods run on the event loop.

    The engine's side calls `push` and, once the request holds nothing any more, `release`. The reader's side is
    the `EngineStream` protocol. `on_abort` and `on_finish` tell the engine; they must not block.
    """

    def __init__(self, *, on_abort: Callable[[], None], on_finish: Callable[[int], None]) -> None:
        self._on_abort = on_abort
        self._on_finish = on_finish
        self._steps: deque[Step] = deque()
        self._error: DrivetrainError | None = None
        self._released = False
        self._aborted = False
        self._reader: asyncio.Future[None] | None = None
        self._hear: Callable[[Step], bool] | None = None
        self._callbacks: list[Callable[[], None]] = []

    def push(self, step: Step) -> None:
        if self._released or self._aborted:
            return
        if self._hear is None:
            self._steps.append(step)
            self._wake()
        elif not self._hear(step):
            self._hear = None
            self._wake()

    def release(self, error: DrivetrainError | None = None) -> None:
        """The resources are free. `error` ends the stream, after the steps that were pushed before it."""
        if self._released:
            return
        self._released = True
        self._error = error
        self._wake()
        for callback in self._callbacks:
            callback()
        self._callbacks.clear()

    @property
    def unread(self) -> int:
        return len(self._steps)

    @property
    def aborted(self) -> bool:
        return self._aborted

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Step:
        while not self._steps:
            if self._aborted:
                raise Cancelled("the request was cancelled")
            await self._arrival()
        return self._steps.popleft()

    async def follow(self, hear: Callable[[Step], bool]) -> None:
        while True:
            for _ in range(AT_ONCE):
                if self._aborted:
                    raise Cancelled("the request was cancelled")
                if not self._steps:
                    break
                if not hear(self._steps.popleft()):
                    return
            else:
                await asyncio.sleep(0)  # others have something to do too
                continue
            self._hear = hear
            try:
                await self._arrival()
                if not self._followed:
                    return
            finally:
                self._hear = None

    def finish(self, index: int) -> None:
        if not self._released and not self._aborted:
            self._on_finish(index)

    def abort(self) -> None:
        if self._aborted:
            return
        self._aborted = True
        self._steps.clear()
        self._wake()
        if not self._released:
            self._on_abort()

    async def aclose(self) -> None:
        self.abort()
        if self._released:
            return
        released = asyncio.Event()
        self.on_released(released.set)
        await released.wait()

    def on_released(self, callback: Callable[[], None]) -> None:
        if self._released:
            callback()
        else:
            self._callbacks.append(callback)

    @property
    def _followed(self) -> bool:
        """Not any more once the follower has had enough."""
        return self._hear is not None

    def _wake(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None and not reader.done():
            reader.set_result(None)

    def _arrival(self) -> asyncio.Future[None]:
        """Done once there is something new. Raises as `__anext__` where nothing can come."""
        if self._released:
            raise self._error or StopAsyncIteration
        self._reader = asyncio.get_running_loop().create_future()
        return self._reader

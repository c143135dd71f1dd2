"""The requests of an engine that serves each one by a task on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from drivetrain.core.engine import StepSink
from drivetrain.core.errors import DrivetrainError
from drivetrain.engines.base.channel import StepChannel
from drivetrain.engines.base.generation import Emit, Generation


class RequestTasks:
    """`translate` makes the error of a request out of what its task raised; `moved` is called at each end."""

    def __init__(self, translate: Callable[[BaseException], DrivetrainError], moved: Callable[[], None]) -> None:
        self._translate = translate
        self._moved = moved
        self._tasks: dict[StepChannel, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        """Those that have not been let go yet."""
        return sum(not channel.released for channel in self._tasks)

    def start(self, name: str, sink: StepSink, make: Callable[[Emit], Generation]) -> StepChannel:
        """`make` gets where its steps go."""
        channel = StepChannel(
            sink, on_abort=lambda: self._abort(channel), on_finish=lambda index: generation.finish(index)
        )
        generation = make(channel.push)
        task = asyncio.create_task(generation.run(), name=name)
        self._tasks[channel] = task
        task.add_done_callback(lambda done: self._settle(channel, done))
        return channel

    def abort_all(self) -> list[asyncio.Task[None]]:
        """The tasks that are left to wait for."""
        tasks = list(self._tasks.values())
        for channel in list(self._tasks):
            channel.abort()
        return tasks

    def fail_all(self, error: Callable[[], DrivetrainError]) -> None:
        """Whoever computes is gone, and holds nothing: each request has ended now, whenever its task does."""
        for channel, task in list(self._tasks.items()):
            channel.release(error())
            task.cancel()

    def _abort(self, channel: StepChannel) -> None:
        task = self._tasks.get(channel)
        if task is not None:
            task.cancel()

    def _settle(self, channel: StepChannel, task: asyncio.Task[None]) -> None:
        """The one end of every request: its task ends only when it holds nothing."""
        self._tasks.pop(channel, None)
        if not task.cancelled():  # which needs no answer from whoever computes
            self._moved()
        error = None if task.cancelled() else task.exception()
        channel.release(None if error is None else self._translate(error))


async def uninterrupted(work: Awaitable[None]) -> None:
    """Waits for it also when cancelled, and raises that afterwards."""
    future = asyncio.ensure_future(work)
    cancelled = False
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            cancelled = True
    future.result()
    if cancelled:
        raise asyncio.CancelledError


def refused(error: DrivetrainError, sink: StepSink) -> StepChannel:
    """The channel of a request that is not even begun."""
    channel = StepChannel(sink, on_abort=lambda: None, on_finish=lambda index: None)
    channel.release(error)
    return channel

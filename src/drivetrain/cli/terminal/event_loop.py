"""Run a coroutine to its end, or until Ctrl-C or SIGTERM cancels it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import TypeVar

from drivetrain.cli.terminal.interrupts import Terminated, handling

T = TypeVar("T")


def run_cancellable(main: Callable[[], Awaitable[T]]) -> T:
    """The first signal cancels `main`, which then frees what it holds; a second one ends the process at once.

    A handler that raises, as that of `Interrupts` does, may do so inside a callback or another task, and the loop
    goes on.
    """
    received: list[int] = []

    async def cancellable() -> T:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def handle(number: int, frame: FrameType | None) -> None:
            if received:
                os._exit(128 + number)
            received.append(number)
            loop.call_soon_threadsafe(task.cancel)

        with handling(handle):
            return await main()

    try:
        return asyncio.run(cancellable())
    except asyncio.CancelledError:
        if received and received[0] == signal.SIGTERM:
            raise Terminated from None
        raise KeyboardInterrupt from None

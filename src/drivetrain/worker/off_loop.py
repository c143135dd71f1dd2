"""Text work off the event loop: what it raises comes back typed, and it notices when nobody waits any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from drivetrain.core.errors import DrivetrainError, EngineFailed, NotReady
from drivetrain.core.tokenizer import Wanted

T = TypeVar("T")


async def on_thread(threads: Executor, work: Callable[[], T], over: Callable[[], None] | None = None) -> T:
    """Run text work off the event loop. Whatever a tokenizer or template raises, even a panic, comes back typed.

    `over` is called from any thread once the work is done or never will be, which may be after the caller has left.
    """
    wanted = Wanted()
    try:
        job = threads.submit(typed, wanted, work)
    except RuntimeError as exc:  # the threads are gone
        if over is not None:
            over()
        raise NotReady("the worker is stopped") from exc
    if over is not None:
        job.add_done_callback(lambda _: over())
    try:
        with wanted:  # on cancellation the thread notices that nobody waits, and a job that has not begun never does
            return await asyncio.wrap_future(job)
    except asyncio.CancelledError:
        if job.cancelled() and not _is_cancelled():  # by `close`, not by the caller
            raise NotReady("the worker is stopped") from None
        raise
    finally:
        del job  # it holds the exception, which holds this frame


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def typed(wanted: Wanted, work: Callable[[], T]) -> T:
    try:
        with wanted.here():
            return work()
    except DrivetrainError:
        raise
    except BaseException as exc:
        raise EngineFailed(f"the tokenizer failed on this text ({type(exc).__name__})") from exc

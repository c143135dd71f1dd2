"""One thread for one blocking engine: jobs go in, results come back to the event loop, nothing is left behind."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from drivetrain.core.errors import EngineFailed

T = TypeVar("T")

JOIN_TIMEOUT_S = 15.0
"""For which a thread may take to end its job; it hangs then. Longer than `CLOSE_S` of `worker/health/closing.py`, which
tells that."""

_PAUSE_S = 0.01


class EngineThread:
    """Runs jobs one after another. `busy` is False exactly when no job runs and none waits.

    The thread is a daemon that also ends when its owner is forgotten, so it can neither keep the process alive
    nor outlive the engine.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._pending = 0
        self._given_up = asyncio.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=_run, args=(self._jobs,), name=name, daemon=True)
        self._thread.start()
        self._stop = weakref.finalize(self, self._jobs.put, None)

    @property
    def busy(self) -> bool:
        return self._pending > 0

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def submit(self, job: Callable[[], None], then: Callable[[], None] | None = None) -> None:
        """Run `job` on the thread; it must handle its own errors. `then` follows when it counts as done."""
        with self._lock:
            self._pending += 1
        self._jobs.put(lambda: self._count(job, then))

    async def call(self, function: Callable[[], T], on_cancel: Callable[[], None] = lambda: None) -> T:
        """Run `function` on the thread and return or raise what it does.

        Cancelling calls `on_cancel`, which may ask the function to be quick, and waits for it to end.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]  # None only where T is None

        def job() -> None:
            try:
                result = function()
            except BaseException as exc:  # noqa: BLE001 - handed to the caller whole
                post(loop, lambda error=exc: settle(None, error))  # type: ignore[misc]  # bound now
            else:
                post(loop, lambda: settle(result, None))

        self.submit(job)
        ended: asyncio.Future[Any] = asyncio.ensure_future(self._given_up.wait())
        either: set[asyncio.Future[Any]] = {future, ended}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not future.done():
                raise EngineFailed("the engine's thread has ended, or hangs")
            return future.result()
        except asyncio.CancelledError:
            on_cancel()
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if future.done() and not future.cancelled():
                future.exception()
            raise
        finally:
            ended.cancel()
            future.cancel()

    async def close(self) -> None:
        """Finish the running job and end the thread. Idempotent. What has no answer by then will have none."""
        self._stop()
        end = time.monotonic() + JOIN_TIMEOUT_S
        try:
            # Not a join on another thread: that one would outlive a close that is cancelled.
            while self.alive and not self._given_up.is_set() and time.monotonic() < end:  # noqa: ASYNC110 - as above
                await asyncio.sleep(_PAUSE_S)
        finally:
            self._given_up.set()

    def _count(self, job: Callable[[], None], then: Callable[[], None] | None) -> None:
        try:
            job()
        finally:
            with self._lock:
                self._pending -= 1
            if then is not None:
                then()

    @staticmethod
    def _survive(exc: BaseException) -> None:
        """A job that breaks its promise to handle its own errors must not take the thread with it."""
        logging.getLogger(__name__).error("a job of an engine's thread failed: %s", type(exc).__name__)


def post(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    """Call back on the loop; if the loop is gone, so is everybody who could care."""
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        if not loop.is_closed():
            raise


def _run(jobs: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (job := jobs.get()) is not None:
        try:
            job()
        except BaseException as exc:  # noqa: BLE001 - the thread must outlive any job, a panic of a library too
            EngineThread._survive(exc)
        del job

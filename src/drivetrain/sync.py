"""The blocking face: the same worker, for programs without an event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from drivetrain import assembly
from drivetrain.core.capabilities import Capabilities
from drivetrain.core.errors import Cancelled, NotReady
from drivetrain.core.events import Event
from drivetrain.core.results import Embeddings, Result
from drivetrain.core.status import Metadata, Status
from drivetrain.worker.stream import EventStream

T = TypeVar("T")


class Worker:
    """A worker on an event loop of its own, in a thread of its own. Use it with `with`, from any thread.

    with drivetrain.sync.Worker.open("smollm2-135m") as worker:
        for event in worker.stream(prompt="The capital of France is", max_tokens=8): ...
    """

    def __init__(self, opening: assembly.Opening) -> None:
        self._opening = opening
        self._started: assembly.Worker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @classmethod
    def open(cls, model: str | Path, engine: str = "auto", **settings: Any) -> Self:
        return cls(assembly.Worker.open(model, engine, **settings))

    def __enter__(self) -> Self:
        if self._loop is not None:
            raise NotReady("this worker was opened before; open another one")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="drivetrain-sync", daemon=True)
        self._thread.start()
        try:
            self._started = _wait(self._loop, self._opening.__aenter__)
        except BaseException:
            self._end_loop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the worker and its loop. Idempotent."""
        if self._loop is None or self._loop.is_closed():
            return
        try:
            if self._started is not None:
                _wait(self._loop, self._started.stop)
        finally:
            self._end_loop()

    @property
    def _worker(self) -> assembly.Worker:
        if self._started is None:
            raise NotReady("the worker is not open; use it with `with`")
        return self._started

    @property
    def metadata(self) -> Metadata:
        return self._worker.metadata

    @property
    def capabilities(self) -> Capabilities:
        return self._worker.capabilities

    @property
    def status(self) -> Status:
        return self._worker.status

    def stream(self, **request: Any) -> SyncStream:
        loop = self._running()
        return SyncStream(loop, _wait(loop, lambda: self._open(request)))

    def generate(self, **request: Any) -> Result:
        return self._call(lambda worker: worker.generate(**request))

    def count_tokens(self, text: str | None = None, *, messages: Sequence[Any] | None = None) -> int:
        return self._call(lambda worker: worker.count_tokens(text, messages=messages))

    def embed(
        self, inputs: str | Sequence[str] | Sequence[Sequence[int]], *, timeout_s: float | None = None
    ) -> Embeddings:
        return self._call(lambda worker: worker.embed(inputs, timeout_s=timeout_s))

    async def _open(self, request: dict[str, Any]) -> EventStream:
        return self._worker.stream(**request)

    def _call(self, work: Callable[[assembly.Worker], Coroutine[Any, Any, T]]) -> T:
        worker = self._worker
        return _wait(self._running(), lambda: work(worker))

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None or self._loop.is_closed():
            raise NotReady("the worker is not open; use it with `with`")
        return self._loop

    def _end_loop(self) -> None:
        """Let what still runs on the loop end (a load that was interrupted, say), then end the loop and its thread."""
        assert self._loop is not None
        assert self._thread is not None
        _wait(self._loop, _wind_up)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _wind_up() -> None:
    loop = asyncio.get_running_loop()
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()


class SyncStream:
    """The events of one answer, blocking. Leaving the loop early and forgetting it ends the request."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stream: EventStream) -> None:
        self._loop = loop
        self._stream = stream

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        if self._loop.is_closed():
            raise Cancelled("the worker was closed")
        try:
            return _wait(self._loop, self._stream.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None

    def result(self) -> Result:
        return self._stream.result()

    def close(self) -> None:
        """End the request. Idempotent, also after the worker is closed, which ended it."""
        if not self._loop.is_closed():
            _wait(self._loop, self._stream.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _wait(loop: asyncio.AbstractEventLoop, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run on the worker's loop and wait here; an interrupt here cancels it there.

    The coroutine is made over there, so that an interrupt at any moment leaves none that nobody awaits.
    """
    done: concurrent.futures.Future[T] = concurrent.futures.Future()
    call = _Call(work, done)
    try:
        loop.call_soon_threadsafe(call.begin)
        return done.result()
    except BaseException:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(call.cancel)
        raise


class _Call(Generic[T]):
    """One piece of work on the loop. `begin` and `cancel` run there, each at most once, in any order."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]], done: concurrent.futures.Future[T]) -> None:
        self._work = work
        self._done = done
        self._task: asyncio.Task[T] | None = None
        self._cancelled = False

    def begin(self) -> None:
        if not self._cancelled:
            self._task = asyncio.get_running_loop().create_task(self._work())
            self._task.add_done_callback(self._tell)

    def cancel(self) -> None:
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()

    def _tell(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self._done.cancel()
        elif (exc := task.exception()) is not None:
            self._done.set_exception(exc)
        else:
            self._done.set_result(task.result())

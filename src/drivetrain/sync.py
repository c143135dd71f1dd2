"""The blocking face: the same worker, for programs without an event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, Self, TypeVar, Unpack

from drivetrain import assembly
from drivetrain.core.capabilities import Capabilities
from drivetrain.core.errors import Cancelled, NotReady
from drivetrain.core.events import Event
from drivetrain.core.options import GenerateOptions
from drivetrain.core.results import Embeddings, Ranking, Result
from drivetrain.core.status import Metadata, Status
from drivetrain.worker.health.closing import CLOSE_S
from drivetrain.worker.stream import EventStream

T = TypeVar("T")

LEAVING_S = CLOSE_S + 3.0
"""For what was interrupted to end by itself: a load closes its engine first."""


class Worker:
    """A worker on an event loop of its own, in a thread of its own. Use it with `with`, from any thread.

    It belongs to the process that started it: a forked child has no such thread, and each call there raises `NotReady`.

    with drivetrain.sync.Worker.open("smollm2-135m") as worker:
        for event in worker.stream(prompt="The capital of France is", max_tokens=8): ...
    """

    def __init__(self, opening: assembly.Opening) -> None:
        self._opening = opening
        self._started: assembly.Worker | None = None
        self._loop: _Loop | None = None

    @classmethod
    def open(cls, model: str | Path, engine: str = "auto", **settings: Any) -> Self:
        return cls(assembly.Worker.open(model, engine, **settings))

    def __enter__(self) -> Self:
        if self._loop is not None:
            self._loop.refuse_elsewhere()
            raise NotReady("this worker was opened before; open another one")
        self._loop = _Loop()
        try:
            self._started = self._loop.wait(self._opening.__aenter__)
        except BaseException:
            self._loop.end(self._opening.__aexit__)
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the worker and its loop. Idempotent, from any thread; what others wait for ends, as `Cancelled`.

        An interrupt (Ctrl-C) is raised once all has stopped. A second one is raised at once, and what is left to do
        goes on in the loop's thread.
        """
        if self._loop is not None:
            self._loop.end(self._opening.__aexit__)

    @property
    def _worker(self) -> assembly.Worker:
        if self._started is None or self._loop is None:
            raise NotReady("the worker is not open; use it with `with`")
        self._loop.refuse_elsewhere()
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

    def stream(self, **request: Unpack[GenerateOptions]) -> SyncStream:
        loop = self._running()
        return SyncStream(loop, loop.wait(lambda: self._open(request)))

    def generate(self, **request: Unpack[GenerateOptions]) -> Result:
        return self._call(lambda worker: worker.generate(**request))

    def count_tokens(self, text: str | None = None, *, messages: Sequence[Any] | None = None) -> int:
        return self._call(lambda worker: worker.count_tokens(text, messages=messages))

    def embed(
        self, inputs: str | Sequence[str] | Sequence[Sequence[int]], *, timeout_s: float | None = None
    ) -> Embeddings:
        return self._call(lambda worker: worker.embed(inputs, timeout_s=timeout_s))

    def rerank(
        self,
        query: str | Sequence[str],
        documents: Sequence[str],
        *,
        max_tokens_per_doc: int | None = None,
        timeout_s: float | None = None,
    ) -> Ranking:
        return self._call(
            lambda worker: worker.rerank(query, documents, max_tokens_per_doc=max_tokens_per_doc, timeout_s=timeout_s)
        )

    async def _open(self, request: GenerateOptions) -> EventStream:
        return self._worker.stream(**request)

    def _call(self, work: Callable[[assembly.Worker], Coroutine[Any, Any, T]]) -> T:
        worker = self._worker
        return self._running().wait(lambda: work(worker))

    def _running(self) -> _Loop:
        if self._loop is None or self._loop.ended:
            raise NotReady("the worker is not open; use it with `with`")
        return self._loop


class SyncStream:
    """The events of one answer, blocking. Leaving the loop early and forgetting it ends the request."""

    def __init__(self, loop: _Loop, stream: EventStream) -> None:
        self._loop = loop
        self._stream = stream

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        try:
            return self._loop.wait(self._stream.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None

    def result(self) -> Result:
        self._loop.refuse_elsewhere()
        return self._stream.result()

    def close(self) -> None:
        """End the request. Idempotent, also after the worker is closed, which ended it."""
        with contextlib.suppress(Cancelled):
            self._loop.finish(self._stream.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Loop:
    """An event loop in a thread of its own, which does what other threads want done and wait for."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="drivetrain-sync", daemon=True)
        self._thread.start()
        self._giving = threading.RLock()  # both may be wanted by the handler of a signal that comes while they are held
        self._ending = threading.RLock()
        self._is_ending = False
        self._last: _Call[None] | None = None
        self._winding_up = _Call(_wind_up)
        self.ended = False

    def refuse_elsewhere(self) -> None:
        """In a forked child, before any lock: another thread of the parent may have held it, and nobody frees it."""
        if os.getpid() != self._process:
            raise NotReady(
                "this worker belongs to the process that started it, and a forked child cannot use it;"
                " open another worker in this process"
            )

    def wait(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Raises `Cancelled` if the loop has ended, or ends before the work does.

        The coroutine is made over there, so that an interrupt at any moment leaves none that nobody awaits.
        """
        self._refuse_own_thread()
        call = _Call(work)
        try:
            with self._giving:
                if self.ended:
                    raise Cancelled("the worker was closed")
                self._loop.call_soon_threadsafe(call.begin)
            return call.result()
        except BaseException:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(call.cancel)
            raise

    def finish(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """`wait`, but on the loop's own thread, where the garbage collector may ask for it: there it only begins."""
        if threading.current_thread() is self._thread:
            self._loop.call_soon(_Call(work).begin)
        else:
            self.wait(work)

    def end(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do the last work, let what still runs end (a load that was interrupted, say), then the loop and its thread.

        Idempotent. Whatever another thread gives is either given before the end, and ended by it, or refused.
        """
        self._refuse_own_thread()
        with self._ending:
            if self._is_ending or self._loop.is_closed():
                return  # in the first case a signal's handler asks, within the call that does it
            self._is_ending = True
            try:
                self._last = last_call = self._last or _Call(last)
                try:
                    self._end(last_call)
                except BaseException:  # an interrupt; a second one leaves at once, and the end may be asked for again
                    self._end(last_call)
                    raise
                last_call.result()
            finally:
                self._is_ending = False

    def _end(self, last: _Call[None]) -> None:
        """Raises nothing but interrupts, which cancel nothing. Called again, it goes on from where it was."""
        if self._loop.is_closed():
            return
        self._see_through(last)
        with self._giving:
            self.ended = True
        self._see_through(self._winding_up)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _see_through(self, call: _Call[None]) -> None:
        self._loop.call_soon_threadsafe(call.begin)
        call.wait()

    def _refuse_own_thread(self) -> None:
        self.refuse_elsewhere()
        if threading.current_thread() is self._thread:
            raise RuntimeError("this is the worker's own thread, which would wait for itself; ask from another one")


async def _wind_up() -> None:
    """What was cancelled before is on its way to its end, which cancelling it again would cut short."""
    loop = asyncio.get_running_loop()
    if leaving := [task for task in asyncio.all_tasks() if task.cancelling()]:
        await asyncio.wait(leaving, timeout=LEAVING_S)
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()


class _Call(Generic[T]):
    """One piece of work on the loop. `begin` and `cancel` run there, in any order; it is begun once."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._work = work
        self._done: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._task: asyncio.Task[T] | None = None
        self._cancelled = False

    def result(self) -> T:
        try:
            return self._done.result()
        except concurrent.futures.CancelledError:
            raise Cancelled("the worker was closed") from None

    def wait(self) -> None:
        """Until it has ended, however it did."""
        concurrent.futures.wait((self._done,))

    def begin(self) -> None:
        if not self._cancelled and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work())
            self._task.add_done_callback(self._tell)

    def cancel(self) -> None:
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()

    def _tell(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self._done.cancel()
            self._done.set_running_or_notify_cancel()  # or who waits for it would not be told
        elif (exc := task.exception()) is not None:
            self._done.set_exception(exc)
        else:
            self._done.set_result(task.result())

"""The blocking face: the same worker, for programs without an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from drivetrain import assembly
from drivetrain.core.capabilities import Capabilities
from drivetrain.core.errors import NotReady
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
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="drivetrain-sync", daemon=True)

    @classmethod
    def open(cls, model: str | Path, engine: str = "auto", **settings: Any) -> Self:
        return cls(assembly.Worker.open(model, engine, **settings))

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._started = self._call(self._opening.__aenter__())
        except BaseException:
            self._end_loop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the worker and its loop. Idempotent."""
        if self._loop.is_closed():
            return
        try:
            if self._started is not None:
                self._call(self._started.stop())
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
        return SyncStream(self._loop, self._call(self._open(request)))

    def generate(self, **request: Any) -> Result:
        return self._call(self._worker.generate(**request))

    def count_tokens(self, text: str | None = None, *, messages: Sequence[Any] | None = None) -> int:
        return self._call(self._worker.count_tokens(text, messages=messages))

    def embed(self, inputs: str | Sequence[str] | Sequence[Sequence[int]]) -> Embeddings:
        return self._call(self._worker.embed(inputs))

    async def _open(self, request: dict[str, Any]) -> EventStream:
        return self._worker.stream(**request)

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return _wait(self._loop, work)

    def _end_loop(self) -> None:
        self._call(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class SyncStream:
    """The events of one answer, blocking. Leaving the loop early and forgetting it ends the request."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stream: EventStream) -> None:
        self._loop = loop
        self._stream = stream

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        try:
            return _wait(self._loop, self._stream.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    def result(self) -> Result:
        return self._stream.result()

    def close(self) -> None:
        _wait(self._loop, self._stream.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _wait(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """Run on the worker's loop and wait here; an interrupt here cancels it there."""
    future = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise

"""The steps of one request to an engine, for tests that speak to an engine without a worker."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Self

from drivetrain.core.engine import Engine, EngineRequest, RequestHandle, Step
from drivetrain.core.errors import Cancelled, DrivetrainError


class StepReading:
    """A sink that keeps the steps for whoever iterates; what follows an abort is `Cancelled`."""

    def __init__(self, engine: Engine, request: EngineRequest) -> None:
        self._steps: deque[Step] = deque()
        self._news = asyncio.Event()
        self._error: DrivetrainError | None = None
        self._aborted = False
        self.released = asyncio.Event()
        self.handle: RequestHandle = engine.generate(request, self)

    def take(self, step: Step) -> None:
        self._steps.append(step)
        self._news.set()

    def close(self, error: DrivetrainError | None) -> None:
        assert not self.released.is_set(), "the end is told once"
        self._error = error
        self.released.set()
        self._news.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Step:
        while not self._steps:
            if self._aborted:
                raise Cancelled("the request was cancelled")
            if self.released.is_set():
                raise self._error or StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self._steps.popleft()

    async def aclose(self) -> None:
        self._aborted = True
        self._steps.clear()
        self._news.set()
        self.handle.abort()
        await self.released.wait()


async def all_of(reading: StepReading) -> list[Step]:
    return [step async for step in reading]

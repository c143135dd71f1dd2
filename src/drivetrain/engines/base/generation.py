"""One request as a task: its choices side by side, each of which may be done with before the others."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable

from drivetrain.core.engine import EngineRequest, PromptStep, Step

Emit = Callable[[Step], None]


class Generation(ABC):
    """`run` ends when every choice has ended; cancelling it ends them all. Nothing of the request is held after that.

    Choices give their steps to `emit`. A lone choice needs no task of its own.
    """

    def __init__(self, request: EngineRequest, emit: Emit) -> None:
        self._request = request
        self._emit = emit
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._finished: set[int] = set()
        self._prompt_told = False

    @abstractmethod
    async def run_choice(self, index: int) -> None: ...

    async def run(self) -> None:
        """Raises what the first choice to fail raised."""
        wanted = [index for index in range(len(self._request.seeds)) if index not in self._finished]
        if len(wanted) == 1:
            task = asyncio.current_task()
            assert task is not None
            self._tasks[wanted[0]] = task
            await self.run_choice(wanted[0])
            return
        try:
            async with asyncio.TaskGroup() as group:
                for index in wanted:
                    self._tasks[index] = group.create_task(self.run_choice(index))
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None

    def finish(self, index: int) -> None:
        """This choice is not wanted any more."""
        self._finished.add(index)
        if index in self._tasks:
            self._tasks[index].cancel()

    def emit(self, step: Step) -> None:
        """The first choice that hears of the prompt tells of it, and a choice that is finished tells nothing."""
        if isinstance(step, PromptStep):
            if self._prompt_told:
                return
            self._prompt_told = True
        elif step.index in self._finished:
            return
        self._emit(step)

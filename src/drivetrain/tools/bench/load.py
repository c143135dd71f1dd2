"""Sends requests concurrently, or when they are due."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from drivetrain.tools.bench.outcome import Failure, RequestOutcome, Round
from drivetrain.tools.bench.target import Target
from drivetrain.tools.bench.workload import Closed, Level, Open


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One round: what to ask of whom, and for how long to wait for an answer."""

    target: Target
    level: Level
    prompts: Sequence[str]
    max_tokens: int
    timeout_s: float

    async def play(self, keep: list[RequestOutcome], on_outcome: Callable[[], None] = lambda: None) -> Round:
        """Run every request to its end. `keep` gets each outcome as it comes, so that an interrupt loses none."""
        started = time.perf_counter()
        async with asyncio.TaskGroup() as group:

            async def one(i: int, due: float | None) -> None:
                keep.append(await self._outcome(self.prompts[i], due))
                on_outcome()

            if isinstance(self.level, Closed):
                for stream in range(self.level.streams):
                    group.create_task(_in_turn(one, range(stream, len(self.prompts), self.level.streams)))
            else:
                await _when_due(one, self.level, started, group)
        return Round(level=self.level, started=started, ended=time.perf_counter(), outcomes=tuple(keep))

    async def _outcome(self, prompt: str, due: float | None) -> RequestOutcome:
        started = time.perf_counter() if due is None else due
        try:
            async with asyncio.timeout(self.timeout_s):
                return await self.target.ask(prompt, self.max_tokens, due)
        except TimeoutError:
            failure = Failure("timeout", f"no complete answer within {self.timeout_s:g} s")
            return RequestOutcome(started=started, ended=time.perf_counter(), failure=failure)


_One = Callable[[int, float | None], Coroutine[Any, Any, None]]


async def _in_turn(one: _One, numbers: Sequence[int]) -> None:
    for i in numbers:
        await one(i, None)


async def _when_due(one: _One, level: Open, started: float, group: asyncio.TaskGroup) -> None:
    """The time of a request begins when it is due, even if we send it late."""
    for i, due_s in enumerate(level.due_s):
        await asyncio.sleep(max(0.0, started + due_s - time.perf_counter()))
        group.create_task(one(i, started + due_s))

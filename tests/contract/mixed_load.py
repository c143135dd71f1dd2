"""Requests that end in every way, most of them side by side, and what their callers saw of each."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest

from contract.rigs import LONG, PROMPT, Rig
from contract.test_endings import ENDLESS, read_some, until_idle
from drivetrain.core.errors import Cancelled, DeadlineExceeded, DrivetrainError, Overloaded
from drivetrain.core.results import Choice, Usage
from drivetrain.core.stats import ENDINGS, Stats
from drivetrain.worker.worker import EngineWorker

SHORT: dict[str, Any] = {"prompt": PROMPT, "ignore_eos": True, "temperature": 0}


@dataclass(frozen=True)
class Outcome:
    """One request as its caller saw it. `code` is None for an answer; a request that never began has no choices."""

    request: dict[str, Any]
    code: str | None
    usage: Usage
    choices: tuple[Choice, ...]

    @property
    def traceparent(self) -> str:
        """No other request has the same."""
        return str(self.request["trace_context"]["traceparent"])


class Seen:
    """What the callers of a worker saw."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self._asked = 0

    async def generate(self, worker: EngineWorker, **request: Any) -> None:
        named = self._named(request)
        try:
            result = await worker.generate(**named)
        except DrivetrainError as exc:
            self._failed(named, exc)
        else:
            self.outcomes.append(Outcome(named, None, result.usage, result.choices))

    async def leave(self, worker: EngineWorker, after: int) -> None:
        """Read so many events, and go. There may be no place for it."""
        named = self._named(ENDLESS)
        stream = worker.stream(**named)
        with suppress(Overloaded):
            await read_some(stream, after)
        await stream.aclose()
        with pytest.raises((Cancelled, Overloaded)) as caught:
            await anext(stream)
        self._failed(named, caught.value)

    def _named(self, request: dict[str, Any]) -> dict[str, Any]:
        self._asked += 1
        context = {"traceparent": f"00-{'c' * 32}-{self._asked:016x}-01"}
        return {**request, "request_id": f"seen-{self._asked}", "trace_context": context}

    def _failed(self, request: dict[str, Any], error: DrivetrainError) -> None:
        partial = error.partial
        usage, choices = (Usage(), ()) if partial is None else (partial.usage, partial.choices)
        self.outcomes.append(Outcome(request, error.code, usage, choices))

    @property
    def endings(self) -> Counter[str]:
        return Counter(outcome.code or "finished" for outcome in self.outcomes)

    @property
    def answers(self) -> Counter[str]:
        done = (outcome.choices for outcome in self.outcomes if outcome.code is None)
        return Counter(str(choice.finish_reason) for choices in done for choice in choices)

    @property
    def prompt_tokens(self) -> int:
        return sum(outcome.usage.prompt_tokens for outcome in self.outcomes)

    @property
    def completion_tokens(self) -> int:
        return sum(outcome.usage.completion_tokens for outcome in self.outcomes)

    @property
    def cached_tokens(self) -> int:
        return sum(outcome.usage.cached_tokens for outcome in self.outcomes)

    @property
    def begun(self) -> int:
        """Requests that gave a token."""
        return sum(outcome.usage.completion_tokens > 0 for outcome in self.outcomes)


def check_counts(stats: Stats, seen: Seen) -> None:
    """What was counted is what the callers saw."""
    assert dict(stats.endings) == dict(seen.endings)
    assert set(stats.endings) <= set(ENDINGS)
    assert dict(stats.answers) == dict(seen.answers)
    assert stats.prompt_tokens == seen.prompt_tokens
    assert stats.cached_tokens == seen.cached_tokens
    assert stats.completion_tokens == seen.completion_tokens
    assert stats.first_token_s.count == stats.prefill_s.count == seen.begun
    assert stats.queue_s.count == stats.request_s.count
    assert stats.answer_length.count == seen.endings["finished"]
    behind_first = seen.completion_tokens - seen.begun
    assert behind_first // 2 <= stats.between_tokens_s.count <= behind_first  # first tokens may come together


@asynccontextmanager
async def mixed_load(rig: Rig, **settings: Any) -> AsyncIterator[tuple[EngineWorker, Seen]]:
    """A worker of its own that has had them all: finished, cancelled, refused, overloaded, expired, failed."""
    async with rig.open(max_running=3, max_waiting=3, **settings) as worker:
        seen = Seen()
        load = [
            seen.generate(worker, **SHORT, max_tokens=LONG, timeout_s=0.05),  # the first one waits for no place
            seen.leave(worker, 3),
            seen.generate(worker, **SHORT, max_tokens=5),
            seen.generate(worker, **{**SHORT, "temperature": 1}, max_tokens=7, n=2, seed=1),
            seen.generate(worker, **SHORT, max_tokens=1),
            seen.leave(worker, 4),
            seen.generate(worker, **SHORT, max_tokens=4),  # all that may run and wait do
        ]
        await asyncio.gather(*load)
        # Behind a slow way requests come in any order: the first may find no place, the last may find one.
        while not seen.endings[Overloaded.code]:
            await asyncio.gather(*(seen.generate(worker, **ENDLESS) for _ in range(8)))
        timeout_s = 0.05
        while not seen.endings[DeadlineExceeded.code]:
            await seen.generate(worker, **ENDLESS, timeout_s=timeout_s)
            timeout_s /= 2
        while not seen.endings[Cancelled.code]:
            await seen.leave(worker, 3)
        await seen.generate(worker, **{**SHORT, "temperature": -1})
        await seen.generate(worker, **SHORT, max_tokens=worker.capabilities.context_length + 1)
        with rig.fault(worker, 0, RuntimeError("broken")):
            await seen.generate(worker, **ENDLESS)
        await until_idle(rig, worker)
        yield worker, seen

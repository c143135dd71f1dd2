"""A worker in this process as a target: its events, without HTTP."""

from __future__ import annotations

import time
from typing import Any

from drivetrain.assembly import Worker
from drivetrain.core.errors import DrivetrainError
from drivetrain.core.events import Delta, Finished
from drivetrain.core.results import Usage
from drivetrain.tools.bench.outcome import Failure, RequestOutcome
from drivetrain.tools.bench.target import TargetFacts


class InProcess:
    """`chat` sends each prompt as a user message, in the model's own prompt form."""

    def __init__(self, worker: Worker, *, label: str, facts: TargetFacts, chat: bool) -> None:
        self.label = label
        self.facts = facts
        self._worker = worker
        self._chat = chat

    async def ask(self, prompt: str, max_tokens: int, due: float | None) -> RequestOutcome:
        content: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]} if self._chat else {}
        request = (content or {"prompt": prompt}) | {"max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
        started = time.perf_counter() if due is None else due
        events: list[float] = []
        usage = Usage()
        failure = None
        try:
            async with self._worker.stream(**request) as stream:
                async for event in stream:
                    if type(event) is Delta:
                        if event.text:
                            events.append(time.perf_counter())
                    elif type(event) is Finished:
                        usage = event.usage
        except DrivetrainError as exc:
            failure = Failure(exc.code, exc.message)
        return RequestOutcome(
            started=started,
            ended=time.perf_counter(),
            events=tuple(events),
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            failure=failure,
        )

    def advice(self, failure: Failure) -> str:
        return ""

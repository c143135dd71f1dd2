"""What the events of one request amount to: its choices, usage and counts, where it is known by events only."""

from __future__ import annotations

import time
from collections.abc import Sequence

from drivetrain.core.errors import DrivetrainError
from drivetrain.core.events import ChoiceFinished, Delta, Event, Finished, Started
from drivetrain.core.request import GenerateRequest
from drivetrain.core.results import Choice, FinishReason, Metrics, Partial, Result, Usage
from drivetrain.core.stats import Stats, Times
from drivetrain.worker.output import Collected, finish_reasons


class Collecting:
    """The counts are the series of a worker. Its slot is known by the first event only, so `queue_s` holds the way and
    the prompt too."""

    def __init__(self, request: GenerateRequest, request_id: str, model: str, stats: Stats) -> None:
        self._logprobs = request.logprobs is not None or request.prompt_logprobs is not None
        self.request_id = request_id
        self.model = model
        self._stats = stats
        self._times = Times()
        self._tokens = 0
        self._choices = [Collected() for _ in range(request.n or 1)]
        self._started: Started | None = None
        self._finished: Finished | None = None
        self._usage: Usage | None = None

    @property
    def started(self) -> bool:
        return self._started is not None

    @property
    def finished(self) -> bool:
        return self._finished is not None

    def take(self, events: Sequence[Event]) -> None:
        for event in events:
            if type(event) is Delta:
                self._choices[event.index].take(event)
                if event.token_ids:
                    self._tokens += len(event.token_ids)
                    self._stats.count_tokens(self._times, event.index, len(event.token_ids))
            elif type(event) is ChoiceFinished:
                self._choices[event.index].finished = event
            elif type(event) is Started:
                self._started = event
                self._times.admitted = time.monotonic()
                self._stats.queue_s.observe(self._times.admitted - self._times.entered)
            elif type(event) is Finished:
                self._finished = event

    def count(self, error: DrivetrainError | None) -> None:
        """Once it has ended. Tokens that no delta brought, of a stop that was cut off, are known by the usage."""
        self._times.ended = time.monotonic()
        self._stats.completion_tokens += self.usage.completion_tokens - self._tokens
        self._stats.count(self._times, self, error)

    def told(self, usage: Usage) -> None:
        """The usage that came with an error."""
        self._usage = usage

    @property
    def usage(self) -> Usage:
        if self._finished is not None:
            return self._finished.usage
        prompt_tokens = self._started.prompt_tokens if self._started is not None else 0
        return self._usage or Usage(prompt_tokens, sum(len(choice.token_ids) for choice in self._choices))

    @property
    def partial(self) -> Partial:
        return Partial(self.choices, self.usage)

    @property
    def metrics(self) -> Metrics:
        return self._finished.metrics if self._finished is not None else Metrics()

    def result(self) -> Result:
        started = self._started
        return Result(
            request_id=self.request_id,
            model=self.model,
            choices=self.choices,
            usage=self.usage,
            metrics=self.metrics,
            prompt_token_ids=started.prompt_token_ids if started is not None else None,
            truncated_tokens=started.truncated_tokens if started is not None else 0,
        )

    @property
    def choices(self) -> tuple[Choice, ...]:
        """None before the request has begun."""
        if self._started is None:
            return ()
        return tuple(choice.choice(index, logprobs=self._logprobs) for index, choice in enumerate(self._choices))

    @property
    def finish_reasons(self) -> list[FinishReason]:
        return finish_reasons(self._choices)

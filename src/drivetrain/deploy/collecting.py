"""What the events of one request amount to: its choices and its usage, on the side that hears of it by events only."""

from __future__ import annotations

from collections.abc import Sequence

from drivetrain.core.events import ChoiceFinished, Delta, Event, Finished, Started
from drivetrain.core.request import GenerateRequest
from drivetrain.core.results import Choice, FinishReason, Metrics, Partial, Result, Usage
from drivetrain.worker.output import Collected, finish_reasons


class Collecting:
    def __init__(self, request: GenerateRequest, request_id: str, model: str) -> None:
        self._logprobs = request.logprobs is not None or request.prompt_logprobs is not None
        self.request_id = request_id
        self.model = model
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
            elif type(event) is ChoiceFinished:
                self._choices[event.index].finished = event
            elif type(event) is Started:
                self._started = event
            elif type(event) is Finished:
                self._finished = event

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

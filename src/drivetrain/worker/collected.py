"""What has been given out of an answer so far, choice by choice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from drivetrain.core.events import ChoiceFinished
from drivetrain.core.results import Choice, FinishReason, TokenLogprob


@dataclass(slots=True)
class Collected:
    """Of one choice."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finished: ChoiceFinished | None = None
    last_token: float | None = None
    """When its last token came."""

    def choice(self, index: int, *, logprobs: bool) -> Choice:
        finished = self.finished
        return Choice(
            index=index,
            text="".join(self.texts),
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self.logprobs) if logprobs else None,
            finish_reason=finished.reason if finished else None,
            matched_stop=finished.matched_stop if finished else None,
        )


def finish_reasons(choices: Iterable[Collected]) -> list[FinishReason]:
    """Of those that have ended by themselves."""
    return [choice.finished.reason for choice in choices if choice.finished is not None]

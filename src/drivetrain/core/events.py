"""The stream of a request, in order: Started, any number of Delta, a ChoiceFinished for each choice, Finished.

A failed request raises one `DrivetrainError` in place of what is missing; nothing follows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from drivetrain.core.answer import AnswerEvent
from drivetrain.core.receipt import Receipt
from drivetrain.core.results import FinishReason, MatchedStop, Metrics, TokenLogprob, Usage


@dataclass(frozen=True, slots=True)
class Started:
    """The request was admitted and its prompt is ready. `truncated_tokens` were cut by the overflow policy.

    `grammar` is the kind of grammar that the answers are held to, one of `GRAMMAR_KINDS`.
    """

    request_id: str
    model: str
    prompt_tokens: int
    truncated_tokens: int = 0
    prompt_token_ids: tuple[int, ...] | None = None
    grammar: str | None = None


class Delta(NamedTuple):
    """New text of one choice, never taken back. Only a choice's last delta may have empty text.

    `parts` is what the text adds to the message: content, reasoning and calls, as far as they are certain. None: the
    text is all content.

    A tuple, like the steps of engines: there is one per token, and a frozen dataclass takes three times as long.
    """

    index: int  # type: ignore[assignment] # tuple has a method of this name
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    parts: tuple[AnswerEvent, ...] | None = None


@dataclass(frozen=True, slots=True)
class ChoiceFinished:
    """`matched_stop` is the stop string, token id or id sequence that ended it; `repetition` if the choice said the
    same again and again; None for EOS and length.
    """

    index: int
    reason: FinishReason
    matched_stop: MatchedStop | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    usage: Usage
    metrics: Metrics
    receipt: Receipt | None = None
    """If the request asked for one."""


Event = Started | Delta | ChoiceFinished | Finished

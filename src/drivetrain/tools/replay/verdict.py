"""What a replay found: of each choice, whether the same ids came, and where and how far apart if not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

from drivetrain.core.receipt import Receipt
from drivetrain.tools.diff.compare import AnswerToken, Parting


class Verdict(StrEnum):
    """From best to worst."""

    IDENTICAL = "identical"
    ROUNDING = "within rounding"
    DIFFERENT = "different"
    OTHER_PROMPT = "other prompt"
    FAILED = "failed"
    REFUSED = "refused"
    INVALID = "invalid"


GOOD = frozenset({Verdict.IDENTICAL, Verdict.ROUNDING})
NOT_REPLAYED = frozenset({Verdict.REFUSED, Verdict.INVALID})
_ORDER = {verdict: place for place, verdict in enumerate(Verdict)}


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    return max(verdicts, key=_ORDER.__getitem__, default=Verdict.IDENTICAL)


@dataclass(frozen=True, slots=True)
class ChoiceVerdict:
    """`at` counts the equal ids before the first that differs; there `parting` has the recorded token first.

    `logprobs` says how likely the replaying engine finds each recorded id, behind those before it: None where it cannot
    tell.
    """

    index: int
    verdict: Verdict
    at: int | None = None
    parting: Parting | None = None
    why: str = ""
    logprobs: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Replayed:
    """One receipt. `why` says what kept it from being replayed."""

    where: str
    receipt: Receipt | None
    verdict: Verdict
    why: str = ""
    choices: tuple[ChoiceVerdict, ...] = ()

    @classmethod
    def of(cls, where: str, receipt: Receipt, choices: Sequence[ChoiceVerdict]) -> Replayed:
        return cls(where, receipt, worst(choice.verdict for choice in choices), "", tuple(choices))

    @property
    def logprobs(self) -> list[float]:
        return [found for choice in self.choices for found in choice.logprobs if found is not None]


def mean_logprob(replayed: Iterable[Replayed]) -> float | None:
    """Of all recorded tokens whose likelihood is known."""
    found = [logprob for one in replayed for logprob in one.logprobs]
    return fmean(found) if found else None


def first_difference(recorded: Sequence[int], again: Sequence[int]) -> int | None:
    """None: they are equal."""
    pairs = enumerate(zip(recorded, again, strict=False))
    differs = next((place for place, (one, other) in pairs if one != other), None)
    if differs is None and len(recorded) != len(again):
        return min(len(recorded), len(again))
    return differs


def same_end(recorded: str, again: str | None) -> bool:
    """Replayed from ids, an answer to a chat is not read, so that nobody sees its calls."""
    stops = {"stop", "tool_calls"}
    return recorded == again or {recorded, again} <= stops


def unknown(token_id: int, beside: AnswerToken | None) -> AnswerToken:
    """A recorded token where the engine cannot score it, with its logprob if the list beside it has it."""
    other = next((one for one in (beside.top if beside else ()) if one.token_id == token_id), None)
    return AnswerToken(token_id) if other is None else AnswerToken(token_id, other.token, other.logprob)


def apart(first: AnswerToken, second: AnswerToken) -> float | None:
    """How far the engine's logprobs of the two tokens are from each other, in one of its two lists."""
    return next((abs(gap) for gap in (Parting(first, second).gap, Parting(second, first).gap) if gap is not None), None)

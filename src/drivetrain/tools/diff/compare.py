"""Two recorded answers to one prompt: where they diverge, whether that is a tie, how far apart the logprobs are.

Nothing here knows an engine. As long as the tokens of greedy answers are equal, both engines have read the same text.
So their logprobs can be compared up to the place where they diverge, and both lists at that place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from statistics import fmean, median


@dataclass(frozen=True, slots=True)
class Alternative:
    token_id: int
    token: str
    logprob: float


@dataclass(frozen=True, slots=True)
class AnswerToken:
    """One token of an answer, with the logprobs that its engine gave there: None and an empty list if it gave none."""

    token_id: int
    token: str = ""
    logprob: float | None = None
    top: tuple[Alternative, ...] = ()

    def rank_of(self, token_id: int) -> int | None:
        """Counted from 1; None if the list does not have it."""
        return next((rank for rank, one in enumerate(self.top, 1) if one.token_id == token_id), None)

    def logprob_of(self, token_id: int) -> float | None:
        rank = self.rank_of(token_id)
        return None if rank is None else self.top[rank - 1].logprob


@dataclass(frozen=True, slots=True)
class AnswerParts:
    """What the engine's worker read from the text. `calls` are names and arguments."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[tuple[str, str], ...] = ()


PARTS = tuple(part.name for part in fields(AnswerParts))


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """All sampled tokens, including the one that ended the answer."""

    prompt_ids: tuple[int, ...]
    places: tuple[AnswerToken, ...]
    parts: AnswerParts = AnswerParts()

    @property
    def is_plain(self) -> bool:
        """Whether it is all content."""
        return not (self.parts.reasoning or self.parts.calls)


class Agreement(StrEnum):
    AGREES = "agrees"
    TIE = "tie"
    PARTS = "parts"
    OTHER_PROMPT = "other prompt"


@dataclass(frozen=True, slots=True)
class Parting:
    """The first place where the tokens differ; None for an answer that had already ended."""

    first: AnswerToken | None
    second: AnswerToken | None

    @property
    def gap(self) -> float | None:
        """How far the first engine rates the second one's token below its own; None if its list does not have it."""
        if self.first is None or self.second is None or self.first.logprob is None:
            return None
        other = self.first.logprob_of(self.second.token_id)
        return None if other is None else self.first.logprob - other

    @property
    def worst_rank(self) -> int | None:
        """The worse of each token's ranks in the other engine's list; None if a list does not have it."""
        if self.first is None or self.second is None:
            return None
        ranks = (self.first.rank_of(self.second.token_id), self.second.rank_of(self.first.token_id))
        return None if ranks[0] is None or ranks[1] is None else max(ranks[0], ranks[1])


@dataclass(frozen=True, slots=True)
class Comparison:
    """One prompt on two engines. `differences` are of the common tokens' logprobs, if both engines gave one.

    `parts_apart` are those of the `PARTS` in which the answers differ, perhaps although their tokens do not.
    """

    outcome: Agreement
    num_common: int
    differences: tuple[float, ...] = ()
    parting: Parting | None = None
    parts_apart: tuple[str, ...] = ()


def compare(first: RecordedAnswer, second: RecordedAnswer, *, tolerance: float) -> Comparison:
    """A tie means that the first engine rates the second one's token within `tolerance` of its own.

    Its two best tokens are then at least that close. Without logprobs nothing is a tie.
    """
    if first.prompt_ids != second.prompt_ids:
        return Comparison(Agreement.OTHER_PROMPT, 0)
    num_common = _num_common(first.places, second.places)
    pairs = zip(first.places[:num_common], second.places[:num_common], strict=True)
    differences = tuple(
        abs(one.logprob - other.logprob)
        for one, other in pairs
        if one.logprob is not None and other.logprob is not None
    )
    apart = tuple(name for name in PARTS if getattr(first.parts, name) != getattr(second.parts, name))
    if num_common == len(first.places) == len(second.places):
        return Comparison(Agreement.AGREES, num_common, differences, None, apart)
    parting = Parting(_at(first.places, num_common), _at(second.places, num_common))
    tied = parting.gap is not None and parting.gap <= tolerance
    return Comparison(Agreement.TIE if tied else Agreement.PARTS, num_common, differences, parting, apart)


def _num_common(first: Sequence[AnswerToken], second: Sequence[AnswerToken]) -> int:
    pairs = zip(first, second, strict=False)
    return next(
        (i for i, (one, other) in enumerate(pairs) if one.token_id != other.token_id), min(len(first), len(second))
    )


def _at(places: Sequence[AnswerToken], index: int) -> AnswerToken | None:
    return places[index] if index < len(places) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Over all prompts. `worst_rank` is None if nothing diverged, or if a token is not in the other engine's list."""

    num_prompts: int
    counts: dict[Agreement, int]
    fewest_until_parting: int | None
    median_until_parting: float | None
    worst_rank: int | None
    num_compared: int
    largest_difference: float | None
    mean_difference: float | None

    @property
    def is_same(self) -> bool:
        """Whether no prompt diverged beyond a tie, and all were tokenized alike."""
        return self.counts[Agreement.PARTS] == self.counts[Agreement.OTHER_PROMPT] == 0


def summarize(comparisons: Iterable[Comparison]) -> Summary:
    found = list(comparisons)
    partings = [(one.num_common, one.parting) for one in found if one.parting is not None]
    lengths = [num_common for num_common, _ in partings]
    ranks = [parting.worst_rank for _, parting in partings]
    known = [rank for rank in ranks if rank is not None]
    differences = [difference for one in found for difference in one.differences]
    return Summary(
        num_prompts=len(found),
        counts={outcome: sum(one.outcome is outcome for one in found) for outcome in Agreement},
        fewest_until_parting=min(lengths, default=None),
        median_until_parting=median(lengths) if lengths else None,
        worst_rank=max(known) if ranks and len(known) == len(ranks) else None,
        num_compared=len(differences),
        largest_difference=max(differences, default=None),
        mean_difference=fmean(differences) if differences else None,
    )

"""The comparison alone: ties, early ends, other lengths, no logprobs, and what a summary makes of them."""

from __future__ import annotations

from typing import Any

import pytest

from drivetrain.tools.diff.compare import (
    Agreement,
    Alternative,
    AnswerParts,
    AnswerToken,
    RecordedAnswer,
    compare,
    summarize,
)

TOLERANCE = 0.01


def place(token_id: int, *others: tuple[int, float], logprob: float | None = -1.0) -> AnswerToken:
    """A token and, below it, the other ids of its list with their logprobs."""
    if logprob is None:
        return AnswerToken(token_id)
    top = ((token_id, logprob), *others)
    return AnswerToken(token_id, f"t{token_id}", logprob, tuple(Alternative(i, f"t{i}", value) for i, value in top))


def answer(*places: AnswerToken, prompt_ids: tuple[int, ...] = (1, 2)) -> RecordedAnswer:
    return RecordedAnswer(prompt_ids, places)


def compared(first: RecordedAnswer, second: RecordedAnswer, **changes: Any) -> Any:
    return compare(first, second, **{"tolerance": TOLERANCE, **changes})


def test_equal_answers() -> None:
    first = answer(place(7, logprob=-1.0), place(8, logprob=-2.0))
    second = answer(place(7, logprob=-1.5), place(8, logprob=-1.75))
    found = compared(first, second)
    assert (found.outcome, found.num_common, found.parting) == (Agreement.AGREES, 2, None)
    assert found.differences == (0.5, 0.25)


@pytest.mark.parametrize(
    ("other", "apart"),
    [
        (AnswerParts("think", "say", (("f", "{}"),)), ()),
        (AnswerParts("thank", "say", (("f", "{}"),)), ("reasoning",)),
        (AnswerParts("think", "so", (("f", "{}"),)), ("content",)),
        (AnswerParts("think", "say", (("f", '{"a": 1}'),)), ("calls",)),
        (AnswerParts(content="think say f"), ("reasoning", "content", "calls")),
    ],
)
def test_the_parts_are_told_apart(other: AnswerParts, apart: tuple[str, ...]) -> None:
    """Whether or not the tokens are equal; answers to different prompts are not compared."""
    said = AnswerParts("think", "say", (("f", "{}"),))
    first, same = RecordedAnswer((1,), (place(7),), said), RecordedAnswer((1,), (place(7),), other)
    assert compared(first, same).parts_apart == apart
    assert compared(first, RecordedAnswer((1,), (place(8),), other)).parts_apart == apart
    assert compared(first, RecordedAnswer((2,), (place(7),), other)).parts_apart == ()


def test_no_token_at_all_is_equal() -> None:
    assert compared(answer(), answer()).outcome is Agreement.AGREES


@pytest.mark.parametrize(
    ("other", "outcome"),
    [(-1.0, Agreement.TIE), (-1.009, Agreement.TIE), (-1.011, Agreement.PARTS), (-3.0, Agreement.PARTS)],
)
def test_a_parting_is_a_tie_within_the_tolerance(other: float, outcome: Agreement) -> None:
    first = answer(place(7), place(8, (9, other)), place(10))
    second = answer(place(7), place(9, (8, -5.0)), place(11))
    found = compared(first, second)
    assert (found.outcome, found.num_common) == (outcome, 1)
    assert found.parting.gap == pytest.approx(-1.0 - other)
    assert (found.parting.first.token_id, found.parting.second.token_id) == (8, 9)
    assert found.differences == (0.0,)  # nothing after the parting is compared


def test_it_is_the_first_engine_that_says_what_a_tie_is() -> None:
    near, far = answer(place(8, (9, -1.0))), answer(place(9, (8, -9.0)))
    assert compared(near, far).outcome is Agreement.TIE
    assert compared(far, near).outcome is Agreement.PARTS


def test_two_near_bests_are_no_tie_where_the_other_engine_takes_a_third() -> None:
    found = compared(answer(place(7, (8, -1.0), (9, -4.0))), answer(place(9, (7, -2.0))))
    assert found.outcome is Agreement.PARTS
    assert found.parting.gap == 3.0
    assert found.parting.worst_rank == 3


def test_a_token_outside_the_list_is_never_a_tie() -> None:
    found = compared(answer(place(7)), answer(place(9, (7, -1.0))), tolerance=100.0)
    assert (found.outcome, found.parting.gap, found.parting.worst_rank) == (Agreement.PARTS, None, None)


def test_without_logprobs() -> None:
    bare = answer(place(7, logprob=None), place(8, logprob=None))
    same = compared(bare, answer(place(7), place(8)))
    assert (same.outcome, same.differences) == (Agreement.AGREES, ())
    other = compared(bare, answer(place(7), place(9)), tolerance=100.0)
    assert (other.outcome, other.num_common, other.parting.gap) == (Agreement.PARTS, 1, None)


def test_an_early_end_is_a_parting_at_the_token_that_ends() -> None:
    end, on = place(0, (9, -1.002)), place(9, (0, -1.1))
    found = compared(answer(place(7), end), answer(place(7), on, place(10)))
    assert (found.outcome, found.num_common) == (Agreement.TIE, 1)
    assert found.parting.worst_rank == 2


@pytest.mark.parametrize("longer_first", [True, False])
def test_one_answer_that_goes_on_behind_the_other(longer_first: bool) -> None:
    longer, shorter = answer(place(7), place(8)), answer(place(7))
    found = compared(longer, shorter) if longer_first else compared(shorter, longer)
    assert (found.outcome, found.num_common) == (Agreement.PARTS, 1)
    ended = found.parting.second if longer_first else found.parting.first
    assert ended is None
    assert (found.parting.gap, found.parting.worst_rank) == (None, None)


def test_other_prompt_ids_are_told_and_nothing_else_is_compared() -> None:
    found = compared(answer(place(7)), answer(place(7), prompt_ids=(1, 3)))
    assert (found.outcome, found.num_common, found.differences) == (Agreement.OTHER_PROMPT, 0, ())


def test_the_summary() -> None:
    agrees = compared(answer(place(7, logprob=-1.0)), answer(place(7, logprob=-1.5)))
    tie = compared(answer(place(7), place(8, (9, -1.0))), answer(place(7), place(9, (8, -1.0))))
    parts = compared(
        answer(place(7), place(7), place(7), place(8, (1, -1.5), (9, -2.0))),
        answer(place(7), place(7), place(7), place(9, (8, -1.1))),
    )
    found = summarize([agrees, tie, parts])
    assert found.counts == {Agreement.AGREES: 1, Agreement.TIE: 1, Agreement.PARTS: 1, Agreement.OTHER_PROMPT: 0}
    assert (found.num_prompts, found.fewest_until_parting, found.median_until_parting) == (3, 1, 2)
    assert found.worst_rank == 3
    assert (found.num_compared, found.largest_difference, found.mean_difference) == (5, 0.5, 0.1)
    assert not found.is_same
    assert summarize([agrees, tie]).is_same


def test_the_summary_of_no_parting_and_of_other_prompts() -> None:
    agrees = summarize([compared(answer(), answer())])
    assert (agrees.is_same, agrees.fewest_until_parting, agrees.worst_rank) == (True, None, None)
    assert (agrees.num_compared, agrees.largest_difference, agrees.mean_difference) == (0, None, None)
    assert not summarize([compared(answer(), answer(prompt_ids=(3,)))]).is_same


def test_a_rank_that_one_parting_lacks_is_not_told_of_all() -> None:
    known = compared(answer(place(8, (9, -1.0))), answer(place(9, (8, -1.0))))
    unknown = compared(answer(place(8)), answer(place(9)))
    assert summarize([known]).worst_rank == 2
    assert summarize([known, unknown]).worst_rank is None

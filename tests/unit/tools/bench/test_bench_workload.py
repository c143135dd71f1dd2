"""Arrivals by chance that the seed decides, and prompts that no cache has seen."""

from __future__ import annotations

import statistics
from itertools import pairwise

import pytest

from drivetrain.tools.bench.prompts import PROBE_WORDS, PromptMaker
from drivetrain.tools.bench.workload import Closed, arrivals


def test_the_seed_decides_the_arrivals() -> None:
    assert arrivals(4.0, 7, count=50) == arrivals(4.0, 7, count=50)
    assert arrivals(4.0, 7, count=50) != arrivals(4.0, 8, count=50)


def test_a_longer_time_continues_the_same_arrivals() -> None:
    short, long = arrivals(4.0, 7, duration_s=10), arrivals(4.0, 7, duration_s=20)
    assert long.due_s[: short.num_requests] == short.due_s
    assert short.due_s[-1] < 10 <= long.due_s[short.num_requests]


def test_they_come_as_often_as_asked_and_by_chance() -> None:
    due = arrivals(50.0, 1, count=5000).due_s
    gaps = [after - before for before, after in pairwise(due)]
    assert 5000 / due[-1] == pytest.approx(50, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(statistics.mean(gaps), rel=0.1)  # as an exponential has it


def test_there_is_always_one() -> None:
    assert arrivals(0.001, 3, duration_s=0.001).num_requests == 1


def test_levels_say_what_they_are() -> None:
    assert [Closed(1).label, Closed(4, 3).label, arrivals(2.5, 1, count=3).label] == [
        "1 stream", "4 streams", "2.5 requests/s"
    ]  # fmt: skip
    assert Closed(4, 3).num_requests == 12


def test_prompts_have_the_tokens_that_were_asked_for() -> None:
    """A form of 9 tokens around words of 1.5 each."""
    few, many = (round(9 + 1.5 * count) for count in PROBE_WORDS)
    prompts = PromptMaker.measured(1, (few, many))
    for wanted in (30, 100, 900):
        assert 9 + 1.5 * len(prompts.make(wanted, 0).split()) == pytest.approx(wanted, abs=1.5)


def test_a_prompt_shorter_than_the_form_has_one_word() -> None:
    assert len(PromptMaker(1, begin=40).make(10, 0).split()) == 1


def test_prompts_differ_from_their_first_words_on_and_come_again_with_the_seed() -> None:
    prompts = PromptMaker(1)
    made = [prompts.make(30, "4 streams", turn, i, "") for turn in range(8) for i in range(8)]
    assert len({prompt[:25] for prompt in made}) == 64
    assert made == [PromptMaker(1).make(30, "4 streams", turn, i, "") for turn in range(8) for i in range(8)]
    assert made[0] != PromptMaker(2).make(30, "4 streams", 0, 0, "")


def test_a_shared_prefix_is_shared_and_no_more() -> None:
    prompts = PromptMaker(1, shared=20)
    first, second = (prompts.make(30, i).split() for i in range(2))
    assert (len(first), len(second)) == (30, 30)
    assert first[:20] == second[:20]
    assert first[20:] != second[20:]

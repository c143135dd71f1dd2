"""Figures of a round, from times that are known."""

from __future__ import annotations

import pytest
from bench_rigs import failed, outcome, played

from drivetrain.tools.bench.outcome import Failure
from drivetrain.tools.bench.workload import Closed, arrivals


def test_one_answer() -> None:
    answer = outcome(1.0, [1.5, 1.75, 2.25], ended=2.5)
    assert answer.first_s == 0.5
    assert answer.gaps_s == [0.25, 0.5]
    assert answer.total_s == 1.5


def test_an_answer_without_text_has_no_first_token() -> None:
    assert outcome().first_s is None
    assert outcome().gaps_s == []
    assert played(outcome()).first_s is None
    assert played(outcome()).decode_per_s is None


def test_only_whole_answers_count_and_failures_are_counted_by_kind() -> None:
    half = outcome(0.0, [0.5], tokens=99, failure=Failure("timeout", ""))
    done = played(outcome(0.0, [0.1, 0.2]), half, failed(), failed(), wall_s=2.0)
    assert done.tokens_per_s == 1.0
    assert done.requests_per_s == 0.5
    assert done.failures == {"timeout": 1, "overloaded": 2}


def test_nothing_answered_is_no_throughput() -> None:
    assert played(failed()).tokens_per_s == 0.0
    assert played(failed()).first_s is None


def test_one_stream_decodes_from_its_first_token_to_its_last() -> None:
    waited = outcome(0.0, [5.0, 5.1, 5.2], tokens=3)
    assert played(waited, wall_s=6).decode_per_s == pytest.approx(10)


def test_events_of_several_tokens_count_with_their_tokens() -> None:
    assert played(outcome(0.0, [1.0, 2.0, 3.0, 4.0], tokens=8)).decode_per_s == pytest.approx(2.0)


def test_many_streams_decode_while_all_of_them_do() -> None:
    """From 3 to 5: the first has two events there, the second one too."""
    first, second = outcome(0.0, [1.0, 2.0, 3.0, 4.0, 5.0]), outcome(0.0, [3.0, 4.0, 5.0, 6.0])
    assert played(first, second).decode_per_s == pytest.approx(4 / 2)


def test_where_there_is_no_such_time_no_rate_is_made_up() -> None:
    one, other = outcome(0.0, [1.0, 2.0]), outcome(0.0, [3.0, 4.0])
    assert played(one, other).decode_per_s is None
    assert played(one, failed()).decode_per_s is None
    assert played(one, level=arrivals(1.0, 1, count=1)).decode_per_s is None
    assert played(one, other, level=Closed(1, 2)).decode_per_s == pytest.approx(1.0)

"""The check of the KV cache's accounting finds each kind of disorder, under `python -O` too."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from drivetrain.core.engine import EngineRequest
from drivetrain.engines.native.kv.prefix import PrefixIndex
from drivetrain.engines.native.kv.rows import BooksDisagree, CacheRow, KvRows
from drivetrain.engines.native.schedule.budget import TokenBudget
from drivetrain.engines.native.schedule.scheduler import Scheduler
from drivetrain.engines.native.schedule.sequence import Job


def busy() -> Scheduler:
    """Three requests run, one waits."""
    rows = KvRows((8, 16), token_bytes=1, budget_bytes=64)
    made = Scheduler(rows, PrefixIndex(block=4), max_batch=3, budget=TokenBudget(alone=64, beside=64), headroom=4)
    for number in range(4):
        request = EngineRequest(
            request_id=str(number), prompt_ids=(number,) * 5, context_length=16, max_tokens=3, seeds=(0,)
        )
        made.add(Job.of(request, number))
    made.computed(made.schedule())
    return made


def _same_row(made: Scheduler) -> None:
    made.running[0].slot = made.running[1].slot


def _row_without_owner(made: Scheduler) -> None:
    made.rows.take(5)


def _row_in_waiting(made: Scheduler) -> None:
    made.waiting[0].slot = CacheRow(8, 0)


def _ended_runs(made: Scheduler) -> None:
    made.running[0].ended = True


def _order_lost(made: Scheduler) -> None:
    made.running.reverse()


def _wrong_place(made: Scheduler) -> None:
    assert made.running[0].slot is not None
    made.running[0].slot.index = 2


def _dead_row(made: Scheduler) -> None:
    assert made.running[0].slot is not None
    made.running[0].slot.alive = False


def _over_budget(made: Scheduler) -> None:
    made.rows._budget_bytes = 8


def _kept_but_unknown(made: Scheduler) -> None:
    for sequence in (*made.running, *made.waiting):
        made.end_job(sequence.job)
    assert made.rows.num_cold
    made._prefixes = PrefixIndex(block=4)


@pytest.mark.parametrize(
    ("disorder", "words"),
    [
        (_same_row, "nobody's or two sequences'"),
        (_row_without_owner, "nobody's or two sequences'"),
        (_row_in_waiting, "who waits has a row"),
        (_ended_runs, "what has ended is still here"),
        (_order_lost, "the order of arrival is lost"),
        (_wrong_place, "not where it should be"),
        (_dead_row, "not where it should be"),
        (_over_budget, "larger than the budget"),
        (_kept_but_unknown, "the index of beginnings"),
    ],
)
def test_disorder_is_found(disorder: Callable[[Scheduler], None], words: str) -> None:
    made = busy()
    made.check()
    disorder(made)
    with pytest.raises(BooksDisagree, match=words):
        made.check()


def test_it_is_found_without_asserts_too() -> None:
    text = """
from drivetrain.engines.native.kv.rows import BooksDisagree, KvRows
rows = KvRows((8,), token_bytes=1, budget_bytes=64)
rows.take(5).alive = False
try:
    rows.check()
except BooksDisagree as exc:
    print(__debug__, exc)
"""
    done = subprocess.run([sys.executable, "-O", "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout == "False a row is not where it should be\n"

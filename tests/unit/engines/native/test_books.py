"""The check of the KV cache's accounting finds each kind of disorder, under `python -O` too."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from drivetrain.core.engine import EngineRequest
from drivetrain.engines.native.kv.blocks import BlockPool
from drivetrain.engines.native.kv.books import BooksDisagree
from drivetrain.engines.native.kv.tables import BlockRow, BlockTable
from drivetrain.engines.native.schedule.budget import TokenBudget
from drivetrain.engines.native.schedule.scheduler import Scheduler
from drivetrain.engines.native.schedule.sequence import Job


def busy() -> Scheduler:
    """Three requests run, one waits, and something of one that ended is free."""
    pool = BlockPool(16, block_tokens=4)
    made = Scheduler(pool, max_batch=3, budget=TokenBudget(alone=64, beside=64), headroom=4)
    for number in range(4):
        request = EngineRequest(
            request_id=str(number), prompt_ids=(number,) * 5, context_length=16, max_tokens=3, seeds=(0,)
        )
        made.add(Job.of(request, number))
    made.computed(made.schedule())
    table = made.pool.open(5)
    assert table is not None
    made.pool.release(table)
    return made


def _same_table(made: Scheduler) -> None:
    made.running[0].table = made.running[1].table


def _table_without_owner(made: Scheduler) -> None:
    made.pool.open(5)


def _table_in_waiting(made: Scheduler) -> None:
    made.waiting[0].table = BlockTable([], [])


def _ended_runs(made: Scheduler) -> None:
    made.running[0].ended = True


def _order_lost(made: Scheduler) -> None:
    made.running.reverse()


def table_of(made: Scheduler) -> BlockTable:
    table = made.running[0].table
    assert table is not None
    return table


def row_of(made: Scheduler) -> BlockRow:
    return table_of(made).rows[0]


def _wrong_number(made: Scheduler) -> None:
    row_of(made).numbers[0] = 9


def _dead_table(made: Scheduler) -> None:
    table_of(made).alive = False


def _twice(made: Scheduler) -> None:
    row = row_of(made)
    row.blocks[1], row.numbers[1] = row.blocks[0], row.numbers[0]


def _too_full(made: Scheduler) -> None:
    table_of(made).filled = 100


def _too_many_holders(made: Scheduler) -> None:
    row_of(made).blocks[0].num_holders = 2


def _lost(made: Scheduler) -> None:
    made.pool.groups[0].free.clear()


def _free_in_use(made: Scheduler) -> None:
    made.pool.groups[0].free.append(row_of(made).blocks[0])


def _free_twice(made: Scheduler) -> None:
    made.pool.groups[0].free.append(made.pool.groups[0].free[0])


def _too_many(made: Scheduler) -> None:
    made.pool.groups[0].num_blocks = 2


def _kept_but_unknown(made: Scheduler) -> None:
    for sequence in (*made.running, *made.waiting):
        made.end_job(sequence.job)
    assert made.pool.num_idle
    next(iter(made.pool.groups[0].idle)).beginning = None


def _known_but_lost(made: Scheduler) -> None:
    made.pool._nothing.after.clear()


@pytest.mark.parametrize(
    ("disorder", "words"),
    [
        (_same_table, "has no table, or another one's"),
        (_table_without_owner, "a table is nobody's"),
        (_table_in_waiting, "who waits has a table"),
        (_ended_runs, "what has ended is still here"),
        (_order_lost, "the order of arrival is lost"),
        (_wrong_number, "a table's numbers are others"),
        (_dead_table, "was released"),
        (_twice, "a table has a block twice"),
        (_too_full, "more tokens than room"),
        (_too_many_holders, "other holders"),
        (_lost, "lost or in two places"),
        (_free_in_use, "lost or in two places"),
        (_free_twice, "free twice"),
        (_too_many, "more blocks than the budget has"),
        (_kept_but_unknown, "that nobody can find"),
        (_known_but_lost, "names and blocks differ"),
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
from drivetrain.engines.native.kv.blocks import BlockPool
from drivetrain.engines.native.kv.books import BooksDisagree
pool = BlockPool(4)
table = pool.open(5)
table.filled = 100
try:
    pool.check([table])
except BooksDisagree as exc:
    print(__debug__, exc)
"""
    done = subprocess.run([sys.executable, "-O", "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout == "False a table has more tokens than room\n"

"""Rows: none is lost, none is owned twice, contents follow their owners, the budget holds."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st
from row_memory import RowMemory

from drivetrain.engines.native.kv.rows import CacheRow, KvRows, capacities

SIZES = (4, 8, 16)


def test_capacities_end_with_the_context() -> None:
    assert capacities(2048) == (128, 256, 512, 1024, 2048)
    assert capacities(1000) == (128, 256, 512, 1000)
    assert capacities(100) == (100,)
    assert capacities(128) == (128,)


commands = st.lists(
    st.tuples(
        st.sampled_from(["take", "enlarge", "drop", "keep", "evict", "fork", "flush"]),
        st.integers(0, 30),
        st.integers(1, 16),
    ),
    max_size=80,
)


@given(commands, st.integers(16, 200))
def test_contents_follow_their_rows(script: list[tuple[str, int, int]], budget: int) -> None:
    memory = RowMemory()
    evicted: list[CacheRow] = []
    rows = KvRows(SIZES, token_bytes=1, budget_bytes=budget, evicted=evicted.append)
    hot: dict[CacheRow, str] = {}
    cold: dict[CacheRow, str] = {}

    def fill(slot: CacheRow, text: str) -> None:
        memory.apply(rows.drain())
        memory.rows[slot.place] = list(text)
        slot.filled = len(text)
        hot[slot] = text

    for i, (verb, which, length) in enumerate(script):
        pick = list(hot)[which % len(hot)] if hot else None
        text = (chr(97 + i % 26) * length)[:length]
        if verb == "take":
            if (slot := rows.take(length)) is not None:
                assert slot.capacity >= length
                fill(slot, text)
        elif verb == "fork" and pick is not None:
            if (slot := rows.take(max(length, len(hot[pick])))) is not None:
                rows.copy(pick, slot, len(hot[pick]))
                hot[slot] = hot[pick]
        elif verb == "enlarge" and pick is not None:
            if rows.enlarge(pick, max(length, pick.filled)):
                assert pick.capacity >= length
        elif verb == "drop" and pick is not None:
            rows.drop(pick, poisoned=which % 2 == 0)
            del hot[pick]
        elif verb == "keep" and pick is not None:
            text = hot.pop(pick)
            if rows.keep(pick):
                cold[pick] = text
        elif verb == "evict" and (live := [slot for slot in cold if slot.alive]):
            rows.evict(live[which % len(live)])
        elif verb == "flush":
            memory.apply(rows.drain())
        rows.check()
        cold = {slot: text for slot, text in cold.items() if slot.alive}
        assert rows.num_hot == len(hot)
        assert rows.num_cold == len(cold)
    memory.apply(rows.drain())
    for slot, text in {**hot, **cold}.items():
        assert memory.rows.get(slot.place, [])[: len(text)] == list(text)
    assert all(not slot.alive for slot in evicted)
    assert rows.bytes_held == sum(size * sum(rows) for size, rows in memory.segments.items())
    for slot in list(hot):
        rows.drop(slot)
    assert rows.take(SIZES[-1]) is not None  # the largest row is always to be had once nobody runs


def test_a_reset_forgets_all() -> None:
    rows = KvRows(SIZES, token_bytes=1, budget_bytes=64)
    slot, other = rows.take(3), rows.take(3)
    assert slot is not None
    assert other is not None
    rows.keep(slot)
    rows.reset()
    rows.check()
    assert (rows.bytes_held, rows.num_hot, rows.num_cold) == (0, 0, 0)
    assert not slot.alive
    assert not other.alive
    assert rows.drain() == []


def test_thousands_of_kept_rows_give_way_at_once() -> None:
    """All requests stand still meanwhile. It took 1.3 s when each step looked at all rows that were left."""
    rows = KvRows(capacities(2**17), token_bytes=1, budget_bytes=3200 * 1024)
    for i in range(9600):
        slot = rows.take((100, 200, 400, 900, 1900, 100, 300)[i % 7])
        assert slot is not None
        rows.keep(slot)
    kept = rows.num_cold
    assert kept > 6000
    began = time.thread_time()
    assert rows.take(100_000) is not None
    assert time.thread_time() - began < 0.5
    assert rows.num_cold < kept
    rows.check()

"""Blocks: none is lost, contents follow their tables, beginnings are found and stay apart, the pool's size holds."""

from __future__ import annotations

import time
from typing import Any

import pytest
from block_memory import BlockMemory
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.engines.native.kv.blocks import BlockPool
from drivetrain.engines.native.kv.groups import Window, common
from drivetrain.engines.native.kv.tables import BlockTable, Clear, Copy

WINDOWS: list[tuple[Window, ...]] = [(None,), (None, 6), (9,), (1,), (None, 5, 17)]

commands = st.lists(
    st.tuples(
        st.sampled_from(["open", "append", "append", "fork", "release", "poison", "reset"]),
        st.integers(0, 30),
        st.integers(1, 12),
    ),
    max_size=60,
)


@given(commands, st.integers(1, 12), st.booleans(), st.sampled_from(WINDOWS))
def test_contents_follow_their_tables(
    script: list[tuple[str, int, int]], num_blocks: int, shares: bool, windows: tuple[Window, ...]
) -> None:
    """What a table says of a beginning is what was computed for just these ids and this salt."""
    pool = BlockPool(dict.fromkeys(windows, num_blocks), block_tokens=4, shares=shares, chunk=12)
    memory = BlockMemory(pool)
    held: dict[BlockTable, tuple[list[int], str]] = {}

    def compute(table: BlockTable, ids: list[int], salt: str) -> None:
        memory.catch_up()
        memory.hold(table, [(i, salt) for i in ids[: table.filled]])
        memory.write(table, table.filled, [(i, salt) for i in ids[table.filled :]])
        pool.fill(table, ids, len(ids))
        held[table] = ids, salt

    for verb, which, length in script:
        picked = list(held)[which % len(held)] if held else None
        if verb == "open":
            ids, salt = [which % 2] * length, "ab"[which % 3 == 0]
            found = pool.find(ids, length - 1, salt)
            assert len(found) * 4 < length
            assert shares or not found
            table = pool.open(length, found, salt)
            if table is not None:
                assert table.filled == len(found) * 4
                compute(table, ids, salt)
            else:
                assert not all(group.num_available >= pool.blocks_for(length) for group in pool.groups)
        elif picked is None:
            continue
        elif verb == "append":
            ids, salt = held[picked]
            more = [*ids, *[which % 2] * length]
            if pool.enlarge(picked, len(more)):
                compute(picked, more, salt)
            else:
                assert not all(group.num_available >= pool.blocks_for(length) for group in pool.groups)
        elif verb == "fork":
            ids, salt = held[picked]
            start = len(ids) - which % 2
            if pool.can_fork(picked, start):
                table = pool.fork(picked, start, start + length)
                if table is not None:
                    compute(table, [*ids[:start], *[2] * length], salt)
            else:
                assert any(group.window is not None for group in pool.groups)
        elif verb == "reset":
            pool.reset()
            held.clear()
        else:
            del held[picked]
            pool.release(picked, poisoned=verb == "poison")
        pool.check(held)
    memory.catch_up()
    for table, (ids, salt) in held.items():
        memory.hold(table, [(i, salt) for i in ids])
        pool.release(table)
    pool.check([])
    assert pool.num_held == 0
    table = pool.open(min(num_blocks, 3) * 4)  # all of it is to be had once nobody runs
    assert table is not None
    assert all(len(row.blocks) == min(num_blocks, 3) for row in table.rows)


ids_of = st.lists(st.integers(0, 2), max_size=30)


@given(st.lists(ids_of, max_size=8), ids_of, st.integers(0, 30))
def test_a_hit_is_the_longest_known_beginning(known: list[list[int]], wanted: list[int], limit: int) -> None:
    pool = BlockPool(1000, block_tokens=4)
    for ids in known:
        computed(pool, ids)
    best = max((common(ids, wanted, limit) // 4 for ids in known), default=0)
    assert len(pool.find(wanted, min(limit, len(wanted)))) == best
    assert pool.find(wanted, min(limit, len(wanted)), "another") == []
    pool.reset()
    assert pool.find(wanted, min(limit, len(wanted))) == []


def computed(pool: BlockPool, ids: list[int], salt: Any = None, *, keep: bool = False) -> BlockTable:
    table = pool.open(len(ids), pool.find(ids, len(ids) - 1, salt), salt)
    assert table is not None
    pool.fill(table, ids, len(ids))
    if not keep:
        pool.release(table)
    return table


def test_a_hundred_hold_a_beginning_once() -> None:
    pool = BlockPool(1000)
    beginning = [n % 50 for n in range(2000)]
    computed(pool, beginning)
    tables = [computed(pool, [*beginning, n, n], keep=True) for n in range(100)]
    assert pool.num_held == 125 + 100
    assert pool.num_shared == 125
    assert pool.drain() == []
    for table in tables:
        pool.release(table)
    pool.check([])
    assert pool.num_held == 0


def test_the_end_of_a_beginning_goes_before_what_stands_before_it() -> None:
    pool = BlockPool(6, block_tokens=4)
    computed(pool, [1] * 16)
    computed(pool, [2] * 8)
    assert computed(pool, [3] * 4, keep=True).alive
    assert len(pool.find([1] * 16, 16)) == 3
    assert computed(pool, [4] * 8, keep=True).alive
    assert len(pool.find([1] * 16, 16)) == 1
    assert len(pool.find([2] * 8, 8)) == 2


def test_what_was_used_again_stays() -> None:
    pool = BlockPool(4, block_tokens=4)
    computed(pool, [1] * 8)
    computed(pool, [2] * 8)
    assert len(computed(pool, [1] * 9, keep=True).rows[0].blocks) == 3
    assert pool.find([2] * 8, 8) == pool.find([2] * 8, 4) != []


def test_the_poison_of_one_is_in_nobody_elses_way() -> None:
    """What others computed stays known; what the poisoned one computed is not found, and cleared when all have left."""
    pool = BlockPool(8, block_tokens=4)
    computed(pool, [1] * 8)
    bad = computed(pool, [*[1] * 8, *[2] * 5], keep=True)
    beside = computed(pool, [*[1] * 8, *[2] * 4, 3], keep=True)
    poisoned = [block.number for block in bad.rows[0].blocks[2:]]
    pool.release(bad, poisoned=True)
    assert pool.drain() == [Clear(poisoned[1])]
    assert len(pool.find([*[1] * 8, *[2] * 4], 12)) == 2
    pool.release(beside)
    assert pool.drain() == [Clear(poisoned[0])]
    assert len(pool.find([1] * 8, 8)) == 2
    pool.check([])


def test_a_copy_is_of_one_block() -> None:
    pool = BlockPool(4, block_tokens=4)
    first = computed(pool, [1] * 6, keep=True)
    assert pool.fork(first, 6, 9) is not None
    assert pool.drain() == [Copy(1, 2)]
    assert pool.num_shared == 1


def test_no_pool_is_empty() -> None:
    with pytest.raises(ValueError, match="no block"):
        BlockPool(0)


def test_thousands_of_kept_blocks_give_way_at_once() -> None:
    """All requests stand still meanwhile."""
    pool = BlockPool(20_000)
    for n in range(200):
        computed(pool, [n] * 1600)
    assert pool.num_idle == 20_000
    began = time.thread_time()
    assert pool.open(16 * 20_000) is not None
    assert time.thread_time() - began < 0.5
    assert pool.num_idle == 0

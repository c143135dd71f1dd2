"""Beginnings that sequences have in common are held once, computed once, and never by another salt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from rule_loop import LIMIT, Loop

from contract.native_rig import NativeRig
from drivetrain.engines.native.engine import NativeEngine
from drivetrain.engines.native.kv.blocks import BLOCK_TOKENS, BlockPool
from drivetrain.engines.native.kv.tables import Copy, Operation
from drivetrain.engines.native.schedule.scheduler import HEADROOM
from probe import engine_of, stepper_of


def own_blocks(pool: BlockPool, length: int, shared: int) -> int:
    """Of a sequence that was let in with so many ids, of which so many full blocks are others' too."""
    return pool.blocks_for(length + min(HEADROOM, LIMIT)) - shared


@pytest.mark.parametrize("at_once", [True, False])
def test_a_hundred_sequences_hold_their_common_beginning_once(at_once: bool) -> None:
    beginning, num_shared = [i % 5 for i in range(2000)], 2000 // BLOCK_TOKENS
    loop = Loop(num_shared + 100 * 2 + 10)  # of blocks, the beginnings of three would not fit
    if not at_once:
        loop.add(beginning)
        loop.to_the_end()
    before = loop.model.num_computed
    for i in range(100):
        loop.add([*beginning, 10 + i, 3, 4, 5, 6])
    loop.until_all_decode()
    assert len(loop.scheduler.running) == 100
    assert loop.pool.num_shared == num_shared
    assert loop.pool.num_held == num_shared + 100 * own_blocks(loop.pool, 2005, num_shared)
    prompts = (2000 if at_once else 0) + 100 * 5
    decoded = sum(max(sequence.computed - sequence.prompt_length, 0) for sequence in loop.scheduler.running)
    assert loop.model.num_computed - before == prompts + decoded
    loop.to_the_end()
    assert not loop.model.copies
    assert loop.scheduler.num_preemptions == 0


@pytest.mark.parametrize("length", [1, 2, 16, 17, 95, 96, 97, 100, 112])
def test_choices_share_the_full_blocks_of_the_prompt_and_copy_one_at_most(length: int) -> None:
    loop = Loop(200)
    job = loop.add([i % 5 for i in range(length)], n=16)
    loop.until_all_decode()
    full, rest = divmod(length - 1, BLOCK_TOKENS)
    assert len(loop.scheduler.running) == 16
    assert loop.pool.num_held == full + 16 * own_blocks(loop.pool, length, full)
    assert loop.pool.num_shared == full
    targets = [copy.target for copy in loop.model.copies]
    assert len(targets) == len(set(targets)) == (15 if rest else 0)
    tables = [sequence.table for sequence in job.sequences]
    assert {table.rows[0].numbers[full] for table in tables[1:] if table is not None} >= set(targets)
    assert loop.model.num_computed <= length + 16 * LIMIT
    loop.to_the_end()


def test_salts_never_share() -> None:
    loop, prompt, salts = Loop(500), [i % 5 for i in range(100)], ("one", "another", None)
    for again in range(3):  # at first all at once; later, with their beginnings in the cache
        jobs = [loop.add(prompt, salt=salt) for salt in salts]
        loop.until_all_decode()
        tables = [sequence.table for job in jobs for sequence in job.sequences]
        held = [block for table in tables if table is not None for block in table.rows[0].blocks]
        assert len(held) == len(set(held)) == 3 * loop.pool.blocks_for(100 + LIMIT)
        assert loop.pool.num_shared == 0
        assert [job.sequences[0].cached for job in jobs] == [96 if again else 0] * 3
        loop.to_the_end()
    loop.add(prompt, salt="a third")
    loop.to_the_end()
    assert loop.jobs[-1].sequences[0].cached == 0


async def test_an_evicted_beginning_is_computed_again(checkpoint: Callable[[str], Path]) -> None:
    """By the real engine, whose cache holds two of the prompts: it says the same, found, computed anew or copied."""
    async with NativeRig(checkpoint).open(options={"context_length": 256}) as worker:
        engine = engine_of(worker)
        assert isinstance(engine, NativeEngine)
        pool, cache = stepper_of(worker).scheduler.pool, stepper_of(worker).runner.cache
        pool.groups[0].num_blocks = pool.blocks_for(256)
        apply, copies = cache.apply, 0

        def counted(operations: Sequence[Operation]) -> None:
            nonlocal copies
            copies += sum(isinstance(operation, Copy) for operation in operations)
            apply(operations)

        cache.apply = counted  # type: ignore[method-assign]  # to look at what it gets

        async def ask(first: int, **more: Any) -> tuple[int, tuple[int, ...]]:
            ids = [first + i % 50 for i in range(101)]
            result = await worker.generate(prompt_token_ids=ids, temperature=0, max_tokens=8, ignore_eos=True, **more)
            assert len({choice.token_ids for choice in result.choices}) == 1
            return result.usage.cached_tokens, result.choices[0].token_ids

        cached, wanted = await ask(10)
        assert cached == 0
        assert await ask(10) == (96, wanted)
        assert copies == 0, "what is found is held, not copied"
        assert [(await ask(first))[0] for first in (70, 140, 210)] == [0, 0, 0]
        assert await ask(10) == (0, wanted)
        assert await ask(10) == (96, wanted)
        assert copies == 0
        assert await ask(10, n=3) == (96, wanted)
        assert copies == 2


def test_a_beginning_outlives_the_blocks_of_who_computed_it_first() -> None:
    """The later blocks of another one are found behind its own."""
    pool, ids = BlockPool(5, block_tokens=4), list(range(12))
    first = pool.open(4)
    assert first is not None
    pool.fill(first, ids, 4)
    pool.release(first)
    second = pool.open(12)  # without a look into the cache, as with a seed
    assert second is not None
    pool.fill(second, ids, 8)
    other = pool.open(8)
    assert other is not None
    assert not pool.num_idle, "the first one's block is gone"
    pool.fill(second, ids, 12)
    pool.check([second, other])
    assert pool.find(ids, 12) == []
    pool.release(other)
    third = pool.open(4)
    assert third is not None
    pool.fill(third, ids, 4)
    assert [one.blocks[0] for one in pool.find(ids, 12)] == [third.rows[0].blocks[0], *second.rows[0].blocks[1:]]
    pool.check([second, third])

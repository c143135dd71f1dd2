"""Layers with a window keep what they see and no more, and everything that is said stays the same."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from rule_loop import Loop
from test_native_equality import opened, plainly, scheduler_of

import tiny
from contract.native_rig import at_once
from drivetrain.core.results import Choice
from drivetrain.engines.native.kv.blocks import BLOCK_TOKENS, BlockPool, most_blocks
from drivetrain.engines.native.kv.groups import Window
from drivetrain.engines.native.schedule.budget import TokenBudget
from drivetrain.engines.native.schedule.sequence import Sequence

WINDOW = 40
CHUNK = 32


def held_by(sequence: Sequence) -> list[int]:
    """Blocks, by group."""
    assert sequence.table is not None
    return [len(row.blocks) - row.num_gone for row in sequence.table.rows]


def loop_of(*windows: Window, num_blocks: int = 400) -> Loop:
    return Loop(dict.fromkeys(windows, num_blocks), chunk=CHUNK)


def test_a_long_text_holds_a_window_however_long_it_gets() -> None:
    loop = loop_of(WINDOW, num_blocks=8)
    job = loop.add([i % 5 for i in range(1000)], limit=1000)
    while not loop.stepper.idle:
        loop.step()
        if job.sequences[0].table is not None:
            (held,) = held_by(job.sequences[0])
            ahead = CHUNK if job.sequences[0].num_sampled < 2 else 0
            assert held <= -(-(WINDOW + ahead) // BLOCK_TOKENS) + 1
    assert loop.scheduler.num_preemptions == 0
    loop.to_the_end()


def test_of_two_groups_only_the_one_with_a_window_gives_back() -> None:
    loop = loop_of(None, WINDOW)
    job = loop.add([i % 5 for i in range(500)])
    loop.until_all_decode()
    loop.step()
    full, window = held_by(job.sequences[0])
    assert full >= 500 // BLOCK_TOKENS
    assert window <= WINDOW // BLOCK_TOKENS + 2
    assert loop.pool.num_idle > 500 // BLOCK_TOKENS - 5, "what went back can still be found"
    loop.to_the_end()


@pytest.mark.parametrize("windows", [(WINDOW,), (None, WINDOW), (None, 7, WINDOW)])
def test_a_beginning_is_shared_as_long_as_every_group_has_what_it_needs(windows: tuple[Window, ...]) -> None:
    loop, beginning = loop_of(*windows), [i % 5 for i in range(320)]
    loop.add([*beginning, 1, 2])
    loop.to_the_end()
    again = loop.add([*beginning, 3])
    loop.to_the_end()
    assert again.sequences[0].cached == 320
    shorter = loop.add([*beginning[:200], 4, 4])
    loop.to_the_end()
    assert shorter.sequences[0].cached == 192
    for group in loop.pool.groups:
        if group.window is not None:
            lost = group.idle.popitem(last=False)[0]  # what went back first, which nobody needs behind the others
            group.forget(lost)
            group.free.append(lost)
    third = loop.add([*beginning, 5])
    loop.to_the_end()
    assert third.sequences[0].cached == 320


@pytest.mark.parametrize("windows", [(WINDOW,), (None, WINDOW)])
def test_a_beginning_whose_window_is_lost_is_computed_again(windows: tuple[Window, ...]) -> None:
    loop, beginning = loop_of(*windows), [i % 5 for i in range(320)]
    loop.add([*beginning, 1, 2])
    loop.to_the_end()
    (window,) = (group for group in loop.pool.groups if group.window is not None)
    while window.idle:
        lost = window.idle.popitem()[0]
        window.forget(lost)
        window.free.append(lost)
    again = loop.add([*beginning, 3])
    loop.to_the_end()
    assert again.sequences[0].cached == 0
    third = loop.add([*beginning, 4])
    loop.to_the_end()
    assert third.sequences[0].cached == 320


@pytest.mark.parametrize("windows", [(9,), (None, 9)])
def test_what_a_poisoned_one_gave_back_is_not_found_and_is_cleared(windows: tuple[Window, ...]) -> None:
    pool = BlockPool(dict.fromkeys(windows, 20), block_tokens=4, chunk=8)
    shared, bad = [1] * 16, [*[1] * 16, *[2] * 40]
    first = pool.open(16)
    assert first is not None
    pool.fill(first, shared, 8)
    assert pool.enlarge(first, 16)
    pool.fill(first, shared, 16)
    pool.release(first)
    table = pool.open(16 + 8, pool.find(bad, 16))
    assert table is not None
    for filled in range(24, 57, 8):
        pool.fill(table, bad, filled)
        assert pool.enlarge(table, min(filled + 8, 56))
    assert len(pool.find(bad, 56)) == 14
    pool.release(table, poisoned=True)
    pool.check([])
    assert len(pool.find(bad, 56)) == 4, "what others have computed is sound"
    cleared = pool.drain()
    assert len(cleared) == len(set(cleared)) == 10 * len(windows)


@pytest.mark.parametrize("length", [1, 2, 16, 17, 39, 40, 41, 48, 56, 57, 112, 113])
def test_choices_share_what_is_in_the_window(length: int) -> None:
    loop = loop_of(None, WINDOW)
    loop.add([i % 5 for i in range(length)], n=4)
    loop.until_all_decode()
    assert len(loop.scheduler.running) == 4
    assert loop.model.num_computed <= length + 4 * 12, "the prompt is computed once"
    assert len(loop.model.copies) == (6 if (length - 1) % BLOCK_TOKENS else 0)
    loop.to_the_end()


def test_a_choice_that_comes_too_late_for_the_window_computes_the_prompt_itself() -> None:
    loop = Loop({None: 400, WINDOW: 400}, max_batch=1, chunk=CHUNK)
    loop.pool.shares = False
    loop.add([i % 5 for i in range(100)], n=2, limit=50)
    loop.to_the_end()
    assert loop.model.num_computed == 2 * (100 + 49)


def test_what_is_given_back_is_room_for_who_waits() -> None:
    """While the first one goes on: it will not end for long."""
    loop = Loop({256: 50}, chunk=512)
    loop.add([i % 5 for i in range(600)], limit=300)
    loop.step()
    loop.add([9, *(i % 7 for i in range(479))], limit=20)
    for _ in range(30):
        loop.step()
    assert not loop.scheduler.waiting
    loop.to_the_end()


@pytest.mark.parametrize("name", ["mistral", "gemma3_text"])
async def test_texts_to_embed_give_back_too(name: str, checkpoint: Callable[[str], Path]) -> None:
    """In many passes, beside requests that hold what they need next; the cache holds one of them."""
    texts = [[9 + i % 50] * 3 + [20 + (i + j) % 60 for j in range(250)] for i in range(4)]
    async with opened(checkpoint, name) as worker:
        wanted = (await worker.embed(texts)).vectors
        scheduler = scheduler_of(worker)
        scheduler.pool.chunk, scheduler.budget = 32, TokenBudget(alone=16, beside=16)
        for group in scheduler.pool.groups:
            group.num_blocks = most_blocks(320, group.window, 32)
            group.reset()
            del group.made[group.num_blocks :], group.free[: -group.num_blocks]
        others = [
            asyncio.create_task(worker.generate(prompt_token_ids=texts[i][:200], max_tokens=40)) for i in range(3)
        ]
        found = await worker.embed(texts)
        await asyncio.gather(*others)
        assert [list(vector) for vector in found.vectors] == [pytest.approx(vector, abs=1e-5) for vector in wanted]
        assert scheduler.pool.num_held == 0
        scheduler.check()


@pytest.mark.parametrize("name", ["mistral", "gemma2", "gemma3_text"])
async def test_long_texts_are_what_the_library_says(name: str, checkpoint: Callable[[str], Path]) -> None:
    """Prompts far longer than the window, in chunks and beside others, that begin alike; in little memory."""
    prompts = tuple(tiny.TEXT[0] * 16 + text for text in tiny.TEXT[:5])
    wanted = plainly(checkpoint(name), prompts, 60)
    asked: dict[str, Any] = {"temperature": 0, "max_tokens": 60}
    async with opened(checkpoint, name, budget=TokenBudget(alone=24, beside=7)) as worker:
        scheduler = scheduler_of(worker)
        scheduler.pool.chunk = 24
        scheduler._headroom = 1
        for group in scheduler.pool.groups:
            group.num_blocks = most_blocks(320, group.window, 24) + 1

        async def one(prompt: tuple[int, ...]) -> Choice:
            return (await worker.generate(prompt_token_ids=list(prompt), **asked)).choices[0]

        for said in wanted:
            assert len(said.prompt) > 100
            assert (await one(said.prompt)).token_ids == said.ids
        chance = random.Random(3)
        for _ in range(20):  # whether one loses its blocks depends on who came before it
            together = await at_once(worker, *(one(said.prompt) for said in wanted))
            assert [choice.token_ids for choice in together] == [said.ids for said in wanted]
            if scheduler.num_preemptions:
                break
            chance.shuffle(wanted)
        assert scheduler.num_preemptions > 0

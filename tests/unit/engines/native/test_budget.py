"""What the prompts of a step may cost: it holds at every place of a prompt, and every prompt moves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from drivetrain.core.engine import EngineRequest
from drivetrain.engines.native.kv.blocks import BlockPool
from drivetrain.engines.native.schedule.budget import Room, TokenBudget, budget_for
from drivetrain.engines.native.schedule.scheduler import Scheduler
from drivetrain.engines.native.schedule.sequence import Job

SMOLLM2 = budget_for(on_cpu=True, weights=106_000_000, attended=30 * 9 * 128, cached=30 * 3 * 128)
"""The shapes of SmolLM2-135M: 30 layers, 9 heads on 3, of 64 numbers each."""

budgets = st.builds(
    TokenBudget,
    alone=st.floats(1, 2000),
    beside=st.floats(0, 500),
    share=st.floats(0, 2),
    attention=st.floats(0, 0.01),
    reading=st.floats(0, 0.1),
    least=st.integers(1, 16),
)


@given(budgets, st.floats(0, 2000), st.integers(0, 100_000))
def test_as_many_as_fit_and_not_one_more(budget: TokenBudget, room: float, start: int) -> None:
    count = budget.fitting(room, start)
    slack = 1e-6 * (1 + room)
    assert count >= 0
    assert count == 0 or budget.cost(start, count) <= room + slack
    assert budget.cost(start, count + 1) > room - slack


@given(
    budgets,
    st.lists(st.integers(0, 10_000)),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 10_000)), min_size=1),
)
def test_a_step_stays_within_its_budget_but_for_the_least(
    budget: TokenBudget, decoded: list[int], prompts: list[tuple[int, int]]
) -> None:
    room = Room(budget, decoded)
    counts = [room.take(start, pending) for start, pending in prompts]
    assert counts[0] >= min(budget.least, prompts[0][1])
    assert all(count <= pending for count, (_, pending) in zip(counts, prompts, strict=True))
    decodes = sum(budget.cost(position, 1) for position in decoded)
    allowed = budget.beside + budget.share * decodes if decoded else budget.alone
    spent = sum(budget.cost(start, count) for count, (start, _) in zip(counts, prompts, strict=True) if count)
    assert spent <= max(allowed, budget.cost(prompts[0][0], budget.least)) * (1 + 1e-6)


def test_without_prices_a_budget_is_a_number_of_tokens() -> None:
    room = Room(TokenBudget(alone=16, beside=4), [])
    assert [room.take(0, 10), room.take(500, 10), bool(room), room.take(0, 10)] == [10, 6, False, 0]
    assert Room(TokenBudget(alone=16, beside=4), [5, 6, 7]).take(7000, 100) == 4


def test_a_step_that_takes_longer_anyhow_leaves_more_room() -> None:
    counts = [Room(SMOLLM2, decoded).take(0, 1000) for decoded in ([100] * 12, [1000] * 12, [1000] * 24)]
    assert counts == sorted(set(counts))


def test_the_fewer_a_step_holds_up_the_longer_it_may_take() -> None:
    counts = [Room(SMOLLM2, [100] * decodes).take(0, 1000) for decodes in (0, 1, 2, 4, 8)]
    assert counts[0] == counts[1], "as if it were not there"
    assert counts[1:] == sorted(set(counts), reverse=True)


def test_a_prompt_that_ends_in_the_step_goes_in_as_a_whole() -> None:
    """But not all of them at once, and no long one; what they cost is what is left for others."""
    room = Room(SMOLLM2, [100] * 16, prompts=4)
    alone = Room(SMOLLM2, [100] * 16).take(0, 1000)
    assert alone < 100
    assert room.take(0, 200) == 200
    assert room.take(0, 200) < 100
    assert Room(SMOLLM2, [100] * 16).take(0, 200) == 200
    assert Room(SMOLLM2, [100] * 16).take(7000, 200) < 100, "what stands before it makes it dear"
    assert Room(SMOLLM2, []).take(0, 10_000) == SMOLLM2.fitting(SMOLLM2.alone, 0)


@given(st.lists(st.integers(0, 2000), min_size=1), st.lists(st.tuples(st.integers(0, 4000), st.integers(1, 600))))
def test_decodes_are_held_up_by_no_more_than_two_rooms(decoded: list[int], prompts: list[tuple[int, int]]) -> None:
    room = Room(SMOLLM2, decoded, len(prompts))
    usual = room._left
    spent = sum(SMOLLM2.cost(start, count) for start, pending in prompts if (count := room.take(start, pending)))
    assert spent <= usual + SMOLLM2.held_up + SMOLLM2.cost(4000, SMOLLM2.least)


def test_an_accelerator_takes_more_beside_decodes() -> None:
    there = budget_for(on_cpu=False, weights=106_000_000, attended=30 * 9 * 128, cached=30 * 3 * 128)
    assert Room(there, [100] * 8).take(4000, 8000) > 4 * Room(SMOLLM2, [100] * 8).take(4000, 8000)


def test_cheaper_attention_takes_more_late_in_a_prompt_and_the_same_at_its_start() -> None:
    ours = budget_for(on_cpu=True, weights=106_000_000, attended=30 * 9 * 128, cached=30 * 3 * 128, by_kernel=True)
    assert Room(ours, [0] * 8).take(7000, 8000) >= 1.5 * Room(SMOLLM2, [0] * 8).take(7000, 8000)
    assert Room(ours, [0] * 8).take(0, 8000) <= 1.2 * Room(SMOLLM2, [0] * 8).take(0, 8000)


def test_chunks_shrink_along_a_long_prompt_beside_decodes_and_it_arrives() -> None:
    made = Scheduler(BlockPool(2048, shares=False), max_batch=4, budget=SMOLLM2)
    decoding, long = job(0, 4, 8000), job(1, 8000, 1)
    made.add(decoding)
    step(made)
    made.add(long)
    counts = []
    while long.sequences[0].num_sampled == 0:
        counts.append(step(made)[1])
        assert decoding.sequences[0].num_sampled == len(counts) + 1  # no step without the one that decodes
    assert sum(counts) == 8000
    assert counts[:-1] == sorted(counts[:-1], reverse=True)
    assert counts[0] > 2 * SMOLLM2.least
    assert min(counts[:-1]) >= SMOLLM2.least


def test_where_a_chunk_is_too_dear_the_next_prompt_waits_with_its_blocks() -> None:
    """Its beginning came from the cache, so that it stands too far on for what is left of the step."""
    budget = TokenBudget(alone=20, beside=20, attention=0.5)
    room = Room(budget, [1])
    assert room.take(0, 3) == 3
    assert room
    assert room.take(100, 5) == 0


def job(number: int, prompt: int, max_tokens: int) -> Job:
    request = EngineRequest(
        request_id=str(number), prompt_ids=(number,) * prompt, context_length=8192, max_tokens=max_tokens, seeds=(0,)
    )
    return Job.of(request, number)


def step(made: Scheduler) -> list[int]:
    """One step as the engine does it. How many tokens of each sequence went in, in order of arrival."""
    work = made.schedule()
    made.pool.drain()
    made.computed(work)
    for piece in work:
        if piece.samples:
            piece.sequence.ids.append(0)
    return [piece.count for piece in sorted(work, key=lambda piece: piece.sequence.order)]


def test_who_finds_no_room_makes_no_room_for_others() -> None:
    """Decodes pay for the prompts that are computed, not for those that wait for memory."""

    def chunks(waiting: int) -> int:
        made = Scheduler(BlockPool(1024, shares=False), max_batch=64, budget=SMOLLM2)
        made.add(job(0, 4, 8000))
        step(made)
        made.add(job(1, 6000, 1))
        step(made)
        for number in range(waiting):
            made.add(job(2 + number, 8000, 1))
        step(made)  # the first of them is tried
        return max(sum(step(made)) for _ in range(5))

    assert chunks(20) <= 1.2 * chunks(1)  # whose row there is


def test_a_burst_beside_a_decode_is_taken_at_once_and_a_long_prompt_leaves_half() -> None:
    made = Scheduler(BlockPool(2**16, shares=False), max_batch=64, budget=SMOLLM2)
    made.add(job(0, 4, 8000))
    step(made)
    for number in range(6):
        made.add(job(1 + number, 20, 100))
    assert step(made) == [1] + [20] * 6
    assert step(made) == [1] * 7
    made.add(job(10, 5000, 1))
    made.add(job(11, 8, 1))
    counts = step(made)
    assert counts[-1] == 8
    assert counts[-2] > 8


def test_of_equally_long_prompts_the_first_goes_first() -> None:
    made = Scheduler(BlockPool(2**16, shares=False), max_batch=64, budget=SMOLLM2)
    first, second = job(0, 1500, 1), job(1, 1500, 1)
    made.add(first)
    made.add(second)
    while not first.sequences[0].num_sampled:
        assert second.sequences[0].computed < 8, "what a step had left"
        step(made)
    assert 8 < second.sequences[0].computed < 256, "the rest of the last step"


def test_a_long_prompt_leaves_half_to_a_shorter_one_behind_one_as_long() -> None:
    made = Scheduler(BlockPool(2**16, shares=False), max_batch=64, budget=SMOLLM2)
    for number, length in enumerate((1500, 1500, 50)):
        made.add(job(number, length, 1))
    long, _, short = step(made)
    assert long > short == 50


def test_one_whose_beginning_is_in_the_cache_does_not_wait_for_a_long_one() -> None:
    budget = budget_for(on_cpu=True, weights=106_000_000, attended=30 * 9 * 128, cached=30 * 3 * 128, by_kernel=True)
    made = Scheduler(BlockPool(2**16), max_batch=64, budget=budget)
    earlier, long, next_turn = job(0, 1200, 1), job(1, 2000, 1), job(0, 1240, 1)
    made.add(earlier)
    while not earlier.sequences[0].num_sampled:
        step(made)
    made.end_job(earlier)
    next_turn.sequences[0].order = (2, 0)
    made.add(long)
    made.add(next_turn)
    step(made)
    assert next_turn.sequences[0].num_sampled == 1
    assert long.sequences[0].computed > 100


def test_what_is_shared_and_not_used_comes_back() -> None:
    for prompts, share in ((0, 16), (1, 8)):
        room = Room(TokenBudget(alone=16), [], prompts=prompts)
        other = room.shared()
        assert other.take(0, 3) == 3
        room.take_back(other)
        assert room.take(0, 100) == 16 - 3
        assert other.take(0, 100) == share - 3
    assert Room(SMOLLM2, [100] * 8).shared().take(0, 200) < 100

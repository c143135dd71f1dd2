"""No sequence is lost or starved, the oldest goes first, the budgets hold: by random lives of random requests."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from block_memory import BlockMemory
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.core.engine import EngineRequest
from drivetrain.engines.native.kv.blocks import BlockPool
from drivetrain.engines.native.schedule.budget import TokenBudget
from drivetrain.engines.native.schedule.scheduler import Scheduler
from drivetrain.engines.native.schedule.sequence import Job, Sequence, Work

CONTEXT = 64
BUDGET = TokenBudget(alone=16, beside=4)


def job(
    number: int,
    prompt: int,
    max_tokens: int,
    n: int = 1,
    *,
    same: bool = False,
    seeded: bool = False,
    salt: str | None = None,
) -> Job:
    request = EngineRequest(
        request_id=str(number),
        prompt_ids=tuple(0 if same else number for _ in range(prompt)),
        context_length=CONTEXT,
        max_tokens=max_tokens,
        seeds=tuple(range(n)),
        seeded=seeded,
        cache_salt=salt,
    )
    return Job.of(request, number)


def scheduler(contexts: int = 4, max_batch: int = 4, *, prefixes: bool = True) -> Scheduler:
    pool = BlockPool(CONTEXT * contexts // 4, block_tokens=4, shares=prefixes)
    return Scheduler(pool, max_batch=max_batch, budget=BUDGET, headroom=4)


def do(made: Scheduler, work: list[Work], memory: BlockMemory | None = None) -> list[Sequence]:
    """What the engine does with a plan. Returns the sequences that ended.

    With a `memory`, every table must hold what its sequence believes is there.
    """
    ended = []
    if memory is not None:
        memory.catch_up()
        for piece in work:
            table, ids = piece.sequence.table, piece.sequence.ids
            assert table is not None
            memory.hold(table, ids[: piece.start])
            memory.write(table, piece.start, ids[piece.start : piece.start + piece.count])
    made.computed(work)
    for piece in work:
        sequence = piece.sequence
        if piece.samples:
            sequence.ids.append(1000 + sequence.num_sampled)
            if sequence.num_sampled >= sequence.job.limit:
                made.end(sequence)
                ended.append(sequence)
    return ended


@dataclass(frozen=True)
class Arrival:
    step: int
    prompt: int
    max_tokens: int
    n: int
    same: bool
    seeded: bool
    ends_at: int | None


arrivals = st.lists(
    st.builds(
        Arrival,
        step=st.integers(0, 20),
        prompt=st.integers(1, 40),
        max_tokens=st.integers(1, 20),
        n=st.integers(1, 3),
        same=st.booleans(),
        seeded=st.booleans(),
        ends_at=st.none() | st.integers(0, 30),
    ),
    max_size=10,
)


@given(arrivals, st.integers(1, 6), st.integers(1, 5), st.booleans())
def test_every_life_ends(requests: list[Arrival], contexts: int, max_batch: int, prefixes: bool) -> None:
    made = scheduler(contexts, max_batch, prefixes=prefixes)
    jobs: list[tuple[Arrival, Job]] = []
    memory = BlockMemory(made.pool)
    waiting = sorted(enumerate(requests), key=lambda pair: pair[1].step)
    for step in range(2000):
        while waiting and waiting[0][1].step <= step:
            number, arrival = waiting.pop(0)
            new = job(number, arrival.prompt, arrival.max_tokens, arrival.n, same=arrival.same, seeded=arrival.seeded)
            jobs.append((arrival, new))
            made.add(new)
        for arrival, started in jobs:
            if arrival.ends_at == step:
                made.end_job(started)
        made.check()
        if made.idle:
            if not waiting:
                break
            continue
        work = made.schedule()
        made.check()
        _is_fair(made, work, max_batch)
        do(made, work, memory)
        made.check()
    else:
        raise AssertionError("some sequence was starved")
    assert len(jobs) == len(requests)
    for arrival, ended in jobs:
        assert ended.ended
        if arrival.ends_at is None:
            wanted = min(arrival.max_tokens, CONTEXT - arrival.prompt)
            assert [s.num_sampled for s in ended.sequences] == [wanted] * arrival.n
    assert made.pool.num_held == 0


def _is_fair(made: Scheduler, work: list[Work], max_batch: int) -> None:
    assert work
    assert len({id(piece.sequence) for piece in work}) == len(work)
    for piece in work:
        sequence = piece.sequence
        assert sequence.table is not None
        assert piece.start == sequence.computed
        assert piece.start + piece.count <= min(len(sequence.ids), len(sequence.table.rows[0].blocks) * 4)
    ready = [s for s in made.running if s.pending == 1]
    assert {id(s) for s in ready} <= {id(piece.sequence) for piece in work}  # decoding never stops
    prompts = sum(piece.count for piece in work if piece.sequence.pending > 1)
    assert prompts <= BUDGET.alone
    assert len(made.running) <= max_batch
    if made.waiting and made.running and made.num_preemptions == 0:
        leaders = [s for s in made.waiting if s.leads]
        assert all(s.order[0] >= made.running[-1].order[0] for s in leaders) or len(made.running) <= max_batch


def test_first_come_first_served() -> None:
    made = scheduler(contexts=20, max_batch=2)
    for number in range(4):
        made.add(job(number, 4, 3))
    ended: list[int] = []
    while not made.idle:
        ended += [sequence.order[0] for sequence in do(made, made.schedule())]
    assert ended == [0, 1, 2, 3]


def test_a_long_prompt_does_not_stop_those_that_decode() -> None:
    made = scheduler(contexts=20)
    made.add(job(0, 4, 30))
    do(made, made.schedule())
    made.add(job(1, 40, 2))
    for _ in range(10):
        work = made.schedule()
        assert work[0].sequence.order == (0, 0)
        assert work[0].count == 1
        assert sum(piece.count for piece in work[1:]) <= BUDGET.beside
        do(made, work)


def test_the_youngest_gives_way_and_comes_back() -> None:
    made = scheduler(contexts=1, prefixes=False)
    first, second = job(0, 20, 20), job(1, 20, 20)
    made.add(first)
    made.add(second)
    order = []
    while not made.idle:
        order += [sequence.order[0] for sequence in do(made, made.schedule())]
    assert made.num_preemptions > 0
    assert order == [0, 1]
    assert first.sequences[0].num_sampled == second.sequences[0].num_sampled == 20


def test_who_has_no_room_is_not_tried_again_until_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its beginning would be looked up in each step, which takes all streams the longer, the longer the prompt is."""
    made = scheduler(contexts=1)
    running, waiting = job(1, 30, 20), job(2, 30, 2)
    made.add(running)
    do(made, made.schedule())
    tried: list[Sequence] = []
    admit = made._admit

    def noted(sequence: Sequence) -> bool:
        tried.append(sequence)
        return admit(sequence)

    monkeypatch.setattr(made, "_admit", noted)
    made.add(waiting)
    for _ in range(12):
        do(made, made.schedule())
    assert [sequence.job for sequence in tried] == [waiting]
    ended = [sequence for _ in range(40) for sequence in do(made, made.schedule())]
    assert [sequence.job for sequence in ended] == [running, waiting]
    assert made.idle


def test_choices_share_the_prompt() -> None:
    made = scheduler(contexts=20)
    asked = job(0, 20, 4, n=3, seeded=True)
    made.add(asked)
    computed = 0
    while not made.idle:
        work = made.schedule()
        computed += sum(piece.count for piece in work)
        do(made, work)
    assert computed == 20 + 3 + 2 * (1 + 3)


def test_a_known_beginning_is_not_computed_again() -> None:
    made = scheduler(contexts=20)
    made.add(job(0, 20, 4, same=True))
    while not made.idle:
        do(made, made.schedule())
    again = job(1, 30, 4, same=True)
    made.add(again)
    assert made.schedule()[0].start == 20
    assert again.sequences[0].cached == 20
    named = job(2, 30, 4, same=True, seeded=True)
    made.add(named)
    made.schedule()
    assert named.sequences[0].cached == 0


def test_after_a_fault_in_the_tensors_the_others_compute_again() -> None:
    made = scheduler(contexts=20)
    broken, well = job(0, 4, 5), job(1, 4, 5)
    made.add(broken)
    made.add(well)
    do(made, made.schedule())
    made.end_job(broken)
    made.lose_all_blocks()
    made.check()
    while not made.idle:
        do(made, made.schedule())
    assert well.sequences[0].num_sampled == 5


def to_the_end(made: Scheduler) -> int:
    """How many positions were computed until all was done."""
    computed = 0
    while not made.idle:
        work = made.schedule()
        computed += sum(piece.count for piece in work)
        do(made, work)
        made.check()
    return computed


def test_equal_prompts_at_once_are_computed_once() -> None:
    made = scheduler(contexts=20)
    equal = [job(number, 30, 4, same=True) for number in range(3)]
    for one in equal:
        made.add(one)
    assert to_the_end(made) == 30 + 3 + 2 * (2 + 3)
    assert [one.sequences[0].cached for one in equal] == [0, 28, 28]


def test_only_an_equal_salt_shares_a_beginning() -> None:
    """At once or one after another; none is a tenant like any other."""
    made = scheduler(contexts=20)
    salts = [None, "a", "b", "a", None]
    at_once = [job(number, 30, 2, same=True, salt=salt) for number, salt in enumerate(salts)]
    for one in at_once:
        made.add(one)
    to_the_end(made)
    assert [one.sequences[0].cached for one in at_once] == [0, 0, 0, 28, 28]
    for number, (salt, cached) in enumerate((("c", 0), ("b", 28), (None, 28))):
        later = job(10 + number, 30, 2, same=True, salt=salt)
        made.add(later)
        to_the_end(made)
        assert later.sequences[0].cached == cached


def test_a_named_seed_waits_for_no_beginning() -> None:
    made = scheduler(contexts=20)
    for number in range(2):
        made.add(job(number, 30, 4, same=True, seeded=True))
    assert to_the_end(made) == 2 * (30 + 3)


def test_who_awaits_a_beginning_goes_on_alone_when_it_is_lost() -> None:
    made = scheduler(contexts=20)
    first, second = job(0, 12, 4, same=True), job(1, 12, 4, same=True)
    made.add(first)
    made.add(second)
    work = made.schedule()
    assert [piece.sequence for piece in work] == [first.sequences[0]]
    assert second.sequences[0].awaits is not None
    do(made, work)
    made.end_job(first, poisoned=True)
    assert to_the_end(made) == 12 + 3
    assert second.sequences[0].cached == 0


def test_who_awaits_a_beginning_takes_it_from_the_blocks_that_are_kept() -> None:
    made = scheduler(contexts=20)
    first, second = job(0, 12, 4, same=True), job(1, 12, 4, same=True)
    made.add(first)
    made.add(second)
    do(made, made.schedule())
    made.end_job(first)
    assert to_the_end(made) == 4 + 3
    assert second.sequences[0].cached == 8


def test_who_gave_way_for_a_beginning_that_was_lost_has_no_work() -> None:
    """A prompt needs more blocks than it kept free; by then, decodes are planned."""
    made = Scheduler(BlockPool(16, block_tokens=4), max_batch=16, budget=TokenBudget(alone=4, beside=2), headroom=1)
    first, second = job(0, 28, 8, same=True), job(1, 28, 8, same=True)
    decoding = [job(2, 2, 20), job(3, 2, 20)]
    for one in (first, second, *decoding):
        made.add(one)
    for _ in range(9):
        do(made, made.schedule())
    assert second.sequences[0].awaits is not None
    made.end_job(first, poisoned=True)
    text = made.open((0, 1), 28)
    assert text is not None
    works = made.schedule()
    assert made.num_preemptions == 2
    assert [work.sequence for work in works] == [second.sequences[0]]
    made.pool.release(text)
    do(made, works)
    to_the_end(made)
    assert [one.sequences[0].num_sampled for one in (second, *decoding)] == [8, 20, 20]


def test_a_text_gets_the_blocks_that_only_younger_ones_share() -> None:
    made = scheduler(contexts=1)
    made.add(job(1, 40, 8, n=2))
    for _ in range(4):
        do(made, made.schedule())
    assert len(made.running) == 2
    assert made.open((2, 0), 60) is None
    table = made.open((0, 0), 60)
    assert table is not None
    assert not made.running
    made.pool.release(table)
    made.check()

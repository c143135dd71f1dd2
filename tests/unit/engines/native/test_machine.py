"""Any sequence of arrivals, steps, endings, preemptions and faults: no block leaks, nobody starves, each ends once.

The blocks are a real list here, and each token in it carries the salt it was computed under, so a block that was shared
too far, too early or across tenants, or freed while it was held, is seen at the next step that reads it.
"""

from __future__ import annotations

from collections import Counter

from block_memory import BlockMemory
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from drivetrain.core.engine import EngineRequest
from drivetrain.engines.native.kv.blocks import BlockPool, most_blocks
from drivetrain.engines.native.kv.groups import Window
from drivetrain.engines.native.kv.tables import BlockTable
from drivetrain.engines.native.schedule.budget import TokenBudget
from drivetrain.engines.native.schedule.lookup import Lookup
from drivetrain.engines.native.schedule.scheduler import Scheduler
from drivetrain.engines.native.schedule.sequence import Job, Sequence, Work

CONTEXT = 64
PATIENCE = 4 * CONTEXT
"""Steps that the oldest sequence may stay without work: others may be computing its beginning, a few ids at a time."""

WINDOWS: list[tuple[Window, ...]] = [(None,), (None, 6), (9,), (1,), (None, 5, 17), (4, 16)]
"""Of the groups of layers."""

pick = st.integers(0, 1000)


class Life(RuleBasedStateMachine):
    """The scheduler as the engine drives it, with lists for tensors and a counter for a model."""

    @initialize(
        contexts=st.integers(1, 6),
        max_batch=st.integers(1, 6),
        prefixes=st.booleans(),
        alone=st.integers(1, 24),
        beside=st.integers(1, 6),
        attention=st.sampled_from([0.0, 0.0, 0.05, 1.0]),
        headroom=st.integers(0, 8),
        windows=st.sampled_from(WINDOWS),
        chunk=st.sampled_from([3, 8, 100]),
        riding=st.sampled_from([0, 3, 20]),
    )
    def begin(
        self,
        contexts: int,
        max_batch: int,
        prefixes: bool,
        alone: int,
        beside: int,
        attention: float,
        headroom: int,
        windows: tuple[Window, ...],
        chunk: int,
        riding: int,
    ) -> None:
        sizes = {window: contexts * most_blocks(CONTEXT, window, chunk, 4) for window in windows}
        pool = BlockPool(sizes, block_tokens=4, shares=prefixes, chunk=chunk)
        budget = TokenBudget(alone=alone, beside=beside, attention=attention, riding=riding)
        self.made = Scheduler(pool, max_batch=max_batch, budget=budget, headroom=headroom)
        self.max_batch = max_batch
        self.memory = BlockMemory(pool)
        self.jobs: list[Job] = []
        self.endings: Counter[Sequence] = Counter()
        self.without_work: Counter[Sequence] = Counter()

    @rule(
        shared=st.integers(0, 40),
        own=st.integers(1, 20),
        kind=st.integers(0, 1),
        max_tokens=st.integers(1, 30),
        n=st.integers(1, 3),
        seeded=st.booleans(),
        salt=st.sampled_from([None, None, "a", "b"]),
        looks_up=st.booleans(),
    )
    def add(
        self, shared: int, own: int, kind: int, max_tokens: int, n: int, seeded: bool, salt: str | None, looks_up: bool
    ) -> None:
        """Prompts have a common beginning and an end of their own (or none: then they are equal)."""
        number = len(self.jobs)
        request = EngineRequest(
            request_id=str(number),
            prompt_ids=(kind,) * shared + ((10 + number % 7,) * own),
            context_length=CONTEXT,
            max_tokens=max_tokens,
            seeds=tuple(range(n)),
            seeded=seeded,
            cache_salt=salt,
        )
        self.jobs.append(Job.of(request, number))
        for sequence in self.jobs[-1].sequences:
            sequence.lookup = Lookup() if looks_up else None
        self.made.add(self.jobs[-1])

    @precondition(lambda self: not self.made.idle)
    @rule()
    def step(self) -> None:
        self._advance()

    @precondition(lambda self: not self.made.idle)
    @rule(count=st.integers(2, 12))
    def some_steps(self, count: int) -> None:
        for _ in range(count):
            if not self.made.idle:
                self._advance()

    @precondition(lambda self: self.jobs)
    @rule(which=pick)
    def abort(self, which: int) -> None:
        """An ended one too: that must change nothing."""
        self._end_job(self.jobs[which % len(self.jobs)])

    @precondition(lambda self: self.jobs)
    @rule(which=pick, index=pick)
    def finish_one_choice(self, which: int, index: int) -> None:
        job = self.jobs[which % len(self.jobs)]
        self._end(job.sequences[index % len(job.sequences)])

    @precondition(lambda self: self.made.running)
    @rule(which=pick)
    def preempt(self, which: int) -> None:
        self.made.preempt(self.made.running[which % len(self.made.running)])

    @precondition(lambda self: not self.made.idle)
    @rule()
    def a_step_fails(self) -> None:
        """All that were in it end, and their blocks are not to be trusted."""
        works = self.made.schedule()
        self.memory.catch_up()
        for job in dict.fromkeys(work.sequence.job for work in works):
            self._end_job(job, poisoned=True)

    @precondition(lambda self: not self.made.idle)
    @rule()
    def the_tensors_fail(self) -> None:
        """Between a plan and its step: every block is lost, and whoever was in the plan ends."""
        works = self.made.schedule()
        self.made.lose_all_blocks()
        for job in dict.fromkeys(work.sequence.job for work in works):
            self._end_job(job, poisoned=True)

    @rule(length=st.integers(1, CONTEXT), age=pick)
    def a_text_comes(self, length: int, age: int) -> None:
        """To embed: the younger ones give way to it."""
        order = (age % (len(self.jobs) + 1), 0)
        older = [sequence for sequence in self.made.running if sequence.order <= order]
        table = self.made.open(order, length)
        assert all(sequence in self.made.running for sequence in older)
        if table is not None:
            self.made.pool.release(table)

    @invariant()
    def the_books_agree(self) -> None:
        self.made.check()
        assert len(self.made.running) <= self.max_batch
        live = {*self.made.running, *self.made.waiting}
        assert len(live) == len(self.made.running) + len(self.made.waiting)
        for job in self.jobs:
            for sequence in job.sequences:
                assert self.endings[sequence] == sequence.ended
                if not sequence.ended and (sequence.leads or job.spawned):
                    assert sequence in live
                if sequence in live:
                    assert not sequence.ended
        if self.made.idle:
            assert self.made.pool.num_held == 0
            assert all(job.ended for job in self.jobs)

    def teardown(self) -> None:
        """Whoever is left gets to the end, with all ids that were asked for."""
        if not hasattr(self, "made"):
            return
        cut = {sequence for job in self.jobs for sequence in job.sequences if sequence.ended}
        ids_left = sum(s.prompt_length + s.job.limit for job in self.jobs for s in job.sequences if not s.ended)
        for _ in range(4 * ids_left + 10):
            if self.made.idle:
                break
            self._advance()
            self.made.check()
        assert self.made.idle, "somebody starves"
        self.the_books_agree()
        for job in self.jobs:
            for sequence in job.sequences:
                assert sequence in cut or sequence.num_sampled == job.limit

    def _advance(self) -> None:
        decoding = {sequence: sequence.table for sequence in self.made.running if sequence.pending == 1}
        works = self.made.schedule()
        self._check_plan(works, decoding)
        self.memory.catch_up()
        for work in works:
            self._compute(work)
        sampling = [work.sequence for work in works if work.samples]
        for work in works:
            self._take_draft(work)
        self.made.computed(works)
        for sequence in sampling:
            if not sequence.ended:
                sequence.ids.append(_next(sequence.ids))
                if sequence.num_sampled >= sequence.job.limit:
                    self._end(sequence)

    def _take_draft(self, work: Work) -> None:
        """What is right of it."""
        ids, before = work.sequence.ids, len(work.sequence.ids)
        for drafted in work.draft:
            if drafted != _next(ids):
                break
            ids.append(drafted)
        if work.draft:
            assert work.sequence.lookup is not None
            work.sequence.lookup.judge(len(ids) - before)

    def _check_plan(self, works: list[Work], decoding: dict[Sequence, BlockTable | None]) -> None:
        assert works
        mine = {work.sequence for work in works}
        assert len(mine) == len(works)
        assert mine <= set(self.made.running)
        for sequence, table in decoding.items():
            assert sequence in mine or sequence.table is not table, "who decodes goes on, or is preempted"
        oldest = min((*self.made.running, *self.made.waiting), key=lambda sequence: sequence.order)
        self.without_work[oldest] = 0 if oldest in mine else self.without_work[oldest] + 1
        assert self.without_work[oldest] <= PATIENCE

    def _compute(self, work: Work) -> None:
        sequence = work.sequence
        assert sequence.table is not None
        assert work.start == sequence.computed
        assert work.start + work.count <= len(work.ids)
        assert sequence.num_sampled + len(work.draft) < sequence.job.limit or not work.draft
        told = [(i, sequence.job.salt) for i in work.ids[: work.start + work.count]]
        self.memory.hold(sequence.table, told[: work.start])
        for group, row in zip(self.made.pool.groups, sequence.table.rows, strict=True):
            held = len(row.blocks) - row.num_gone
            assert held <= most_blocks(len(row.blocks) * 4, group.window, self.made.pool.chunk, 4)
        self.memory.write(sequence.table, work.start, told[work.start :])
        if sequence.cached:
            assert sequence.job.may_use_cache
            assert sequence.cached < sequence.prompt_length

    def _end(self, sequence: Sequence) -> None:
        before = sequence.ended
        self.made.end(sequence)
        self.endings[sequence] += sequence.ended and not before

    def _end_job(self, job: Job, *, poisoned: bool = False) -> None:
        before = [sequence.ended for sequence in job.sequences]
        self.made.end_job(job, poisoned=poisoned)
        for sequence, was in zip(job.sequences, before, strict=True):
            self.endings[sequence] += sequence.ended and not was


def _next(ids: list[int]) -> int:
    """Of a model for which choices of one prompt, and equal prompts, go together."""
    return sum(ids) % 3


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=300, stateful_step_count=50, deadline=None)

"""Any life of the engine's loop, faults included: each request ends once, by its own fault or none, and says its own.

As `tests/unit/engines/native/test_machine.py`, one floor higher: sampler and cache are the real ones, and the model
(`rule_model.py`) says whether what it reads through a table is what its own ids would have written.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

pytest.importorskip("torch")

from rule_model import BAD, STOP, RuleModel, answer

from drivetrain.core.engine import EngineRequest, PromptStep, TokenStep
from drivetrain.core.errors import DrivetrainError, EngineFailed, OutOfMemory
from drivetrain.core.results import FinishReason
from drivetrain.core.sampling import Sampling
from drivetrain.engines.native.embedding import CallOver
from drivetrain.engines.native.kv.blocks import BlockPool, most_blocks
from drivetrain.engines.native.kv.groups import Window
from drivetrain.engines.native.schedule import sequence as sequences
from drivetrain.engines.native.schedule.budget import TokenBudget
from drivetrain.engines.native.schedule.scheduler import Scheduler
from drivetrain.engines.native.schedule.sequence import Job
from drivetrain.engines.native.stepper import Ended, NewStep, Output, Stepper

CONTEXT = 64
BLOCK = 4  # so that a context is 16 blocks
WINDOWS: list[tuple[Window, ...]] = [(None,), (None,), (None, 6), (9,), (None, 5, 17)]
"""Of the groups of layers."""


class Watched(Scheduler):
    """Adds to `careless` whoever is preempted."""

    def __init__(self, pool: BlockPool, careless: set[Job], **more: Any) -> None:
        super().__init__(pool, **more)
        self._careless = careless

    def preempt(self, sequence: sequences.Sequence, *, poisoned: bool = False) -> None:
        self._careless.add(sequence.job)
        super().preempt(sequence, poisoned=poisoned)


class Loop(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.sampled_from([16, 17, 20, 30, 60]),
        max_batch=st.integers(1, 6),
        shares=st.booleans(),
        alone=st.integers(4, 40),
        windows=st.sampled_from(WINDOWS),
    )
    def begin(self, num_blocks: int, max_batch: int, shares: bool, alone: int, windows: tuple[Window, ...]) -> None:
        logging.getLogger("drivetrain.engines.native.stepper").disabled = True
        sizes = {window: num_blocks * most_blocks(CONTEXT, window, alone, BLOCK) // 16 for window in windows}
        pool = BlockPool(sizes, block_tokens=BLOCK, shares=shares, chunk=alone)
        budget = TokenBudget(alone=alone, beside=5)
        self.careless: set[Job] = set()
        self.scheduler = Watched(pool, self.careless, max_batch=max_batch, budget=budget, headroom=2)
        self.model = RuleModel(pool, self.careless)
        self.stepper = Stepper(self.scheduler, self.model)  # type: ignore[arg-type]  # a rule for a model
        self.number = 0
        self.jobs: list[Job] = []
        self.wanted: dict[Job, list[int]] = {}
        self.said: dict[Job, list[list[int]]] = {}
        self.reasons: dict[Job, dict[int, FinishReason]] = {}
        self.errors: dict[Job, DrivetrainError | None] = {}
        self.overs: Counter[Job] = Counter()
        self.finished: set[tuple[Job, int]] = set()
        self.aborted: set[Job] = set()
        self.unlucky: set[Job] = set()

    @rule(
        shared=st.integers(0, 30),
        own=st.integers(0, 10),
        max_tokens=st.integers(0, 25),
        n=st.integers(1, 3),
        prompt_logprobs=st.sampled_from([None, None, None, 0]),
        salt=st.sampled_from([None, None, "a"]),
        seeded=st.sampled_from([False, False, False, True]),
        fate=st.sampled_from(["well", "well", "well", "well", "cursed", "bad"]),
        times=st.integers(1, 3),
    )
    def add(self, times: int, **drawn: Any) -> None:
        for _ in range(times):
            self._add(**drawn)

    @precondition(lambda self: not self.stepper.idle)
    @rule(count=st.integers(1, 10))
    def steps(self, count: int) -> None:
        for _ in range(count):
            if not self.stepper.idle:
                self._hear(self.stepper.step())

    @precondition(lambda self: not self.stepper.idle)
    @rule()
    def a_pass_breaks_once(self) -> None:
        """In company it is done again. Alone, it is its own fault."""
        ended = set(self.errors)
        self.model.fail_forward = True
        self._hear(self.stepper.step())
        self.model.fail_forward = False
        self.unlucky |= {job for job in set(self.errors) - ended if self.errors[job] is not None}

    @precondition(lambda self: not self.stepper.idle)
    @rule()
    def the_cache_breaks_once(self) -> None:
        """The youngest of the step ends; the others compute again."""
        ended = set(self.errors)
        self.model.fail_apply = True
        self._hear(self.stepper.step())
        hit = set(self.errors) - ended
        assert len(hit) == 1
        assert all(isinstance(self.errors[job], OutOfMemory) for job in hit)
        self.unlucky |= hit

    @precondition(lambda self: self.scheduler.running)
    @rule(which=st.integers(0, 100))
    def preempt(self, which: int) -> None:
        self.scheduler.preempt(self.scheduler.running[which % len(self.scheduler.running)])

    @rule(length=st.integers(1, CONTEXT), age=st.integers(0, 5), bad=st.booleans())
    def a_text_is_embedded(self, length: int, age: int, bad: bool) -> None:
        """It came before the last `age` requests, takes blocks of theirs if need be, and leaves nothing."""
        pool, order = self.scheduler.pool, (max(self.number - age, 0), 0)
        table = self.scheduler.open(order, length)
        if table is None:
            running, waiting = self.scheduler.running, self.scheduler.waiting
            older = [sequence for sequence in running if sequence.order <= order]
            assert (older and older == running) or (waiting and waiting[0].order < order)
            return
        self.model.apply(pool.drain())
        self.model.pass_through(table, math.nan if bad else -1.0)
        pool.release(table, poisoned=bad)

    @precondition(lambda self: self.jobs)
    @rule(which=st.integers(0, 100))
    def abort(self, which: int) -> None:
        job = self.jobs[which % len(self.jobs)]
        self.aborted.add(job)
        self.careless.add(job)
        self._hear(self.stepper.abort(job))
        assert self.overs[job] == 1

    @precondition(lambda self: self.jobs)
    @rule(which=st.integers(0, 100), index=st.integers(0, 5))
    def finish(self, which: int, index: int) -> None:
        job = self.jobs[which % len(self.jobs)]
        self.finished.add((job, index % len(job.sequences)))
        self.careless.add(job)
        self._hear(self.stepper.finish(job, index % len(job.sequences)))

    @invariant()
    def all_is_in_order(self) -> None:
        assert not self.model.wrong
        self.scheduler.check()
        for job in self.jobs:
            assert self.overs[job] == job.ended
        if self.stepper.idle:
            self.stepper.check_at_rest()
            assert self.scheduler.pool.num_held == 0
            assert all(job.ended for job in self.jobs)

    def teardown(self) -> None:
        if not hasattr(self, "stepper"):
            return
        for _ in range(5000):
            if self.stepper.idle:
                break
            self._hear(self.stepper.step())
        assert self.stepper.idle, "somebody starves"
        self.all_is_in_order()
        for job in self.jobs:
            self._judge(job)

    def _add(
        self,
        shared: int,
        own: int,
        max_tokens: int,
        n: int,
        prompt_logprobs: int | None,
        salt: str | None,
        seeded: bool,
        fate: str,
    ) -> None:
        self.number += 1
        bad = (BAD,) if fate == "bad" else ()
        request = EngineRequest(
            request_id=str(self.number),
            prompt_ids=(1,) * (shared + 1) + bad + (2 + self.number % 4,) * own,
            context_length=CONTEXT,
            max_tokens=max_tokens,
            stop_ids=frozenset({STOP}),
            seeds=tuple(range(n)),
            seeded=seeded,
            sampling=Sampling(temperature=0.0),
            prompt_logprobs=prompt_logprobs,
            cache_salt=salt,
        )
        job = Job.of(request, self.number)
        self.jobs.append(job)
        self.wanted[job] = answer(request.prompt_ids, job.limit)
        self.said[job], self.reasons[job] = [[] for _ in range(n)], {}
        if fate == "cursed":
            self.model.cursed.add(job)
        if job.limit == 0:
            self.careless.add(job)
        self._hear(self.stepper.add(job))

    def _judge(self, job: Job) -> None:
        error = self.errors[job]
        if job in self.aborted or job in self.unlucky:
            return
        if error is not None:
            assert isinstance(error, EngineFailed)
            assert job in self.model.cursed or BAD in job.request.prompt_ids
            return
        assert BAD not in job.request.prompt_ids or job.limit == 0 or any(one is job for one, _ in self.finished)
        wanted = self.wanted[job]
        for index, ids in enumerate(self.said[job]):
            if (job, index) in self.finished:
                continue
            assert ids == wanted
            last = FinishReason.STOP if wanted[-1:] == [STOP] else FinishReason.LENGTH
            assert self.reasons[job][index] is last

    def _hear(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            assert not isinstance(output, CallOver)
            job = output.job
            assert not self.overs[job], "something was said after the end"
            match output:
                case Ended(_, error):
                    self.overs[job] += 1
                    self.errors[job] = error
                case NewStep(_, PromptStep() as step):
                    assert not any(self.said[job])
                    assert not self.reasons[job]
                    expected = job.request.prompt_logprobs is not None
                    assert (step.logprobs is not None) == expected
                    assert not expected or len(step.logprobs or ()) == len(job.request.prompt_ids)
                case NewStep(_, TokenStep(index, ids, _, reason)):
                    assert index not in self.reasons[job], "a choice spoke after its end"
                    self.said[job][index] += ids
                    wanted = self.wanted[job]
                    assert self.said[job][index] == wanted[: len(self.said[job][index])]
                    if reason is not None:
                        self.reasons[job][index] = reason


TestLoop = Loop.TestCase
TestLoop.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)

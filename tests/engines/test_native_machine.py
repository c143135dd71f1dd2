"""Any life of the engine's loop, faults included: each request ends once, by its own fault or none, and says its own.

As `tests/unit/native/test_machine.py`, one floor higher: the sampler is the real one, the model a rule on the ids.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from drivetrain.core.engine import EngineRequest, PromptStep, TokenStep
from drivetrain.core.errors import DrivetrainError, EngineFailed, OutOfMemory
from drivetrain.core.results import FinishReason
from drivetrain.core.sampling import Sampling
from drivetrain.engines.native.kv.prefix import PrefixIndex
from drivetrain.engines.native.kv.rows import CacheRow, Clear, Copy, Grow, KvRows, Operation, Trim, capacities
from drivetrain.engines.native.schedule.budget import TokenBudget
from drivetrain.engines.native.schedule.scheduler import Scheduler
from drivetrain.engines.native.schedule.sequence import Job, Work
from drivetrain.engines.native.stepper import Ended, NewStep, Output, Stepper

CONTEXT = 64
VOCABULARY = 7
STOP = 6


def following(ids: Sequence[int]) -> int:
    """The model: what comes after these ids."""
    return (sum(ids) + len(ids) // 3) % VOCABULARY


def answer(prompt: Sequence[int], limit: int) -> list[int]:
    ids = list(prompt)
    while len(ids) - len(prompt) < limit and STOP not in ids[len(prompt) :]:
        ids.append(following(ids))
    return ids[len(prompt) :]


@dataclass
class Tensors:
    """Lists in the place of the cache, and of the model. `fail_*` break the next call."""

    token_rows: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    segments: dict[int, list[int]] = field(default_factory=dict)
    cursed: set[Job] = field(default_factory=set)
    nan: set[Job] = field(default_factory=set)
    fail_apply: bool = False
    fail_forward: bool = False

    @property
    def cache(self) -> Tensors:
        return self

    @property
    def bytes_held(self) -> int:
        return sum(capacity * sum(rows) for capacity, rows in self.segments.items())

    def apply(self, operations: Sequence[Operation]) -> None:
        if self.fail_apply:
            self.fail_apply = False
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        for operation in operations:
            match operation:
                case Grow(capacity, rows):
                    self.segments.setdefault(capacity, []).append(rows)
                case Trim(capacity):
                    self.segments[capacity].pop()
                case Copy(source, target, length):
                    held = self.token_rows.get((source.capacity, source.index), [])
                    self.token_rows[target.capacity, target.index] = held[:length]
                case Clear(place):
                    self.token_rows[place.capacity, place.index] = []

    def reset(self) -> None:
        self.token_rows.clear()
        self.segments.clear()

    def forward(self, works: Sequence[Work]) -> tuple[list[Work], Any]:
        import torch

        if self.fail_forward:
            self.fail_forward = False
            raise RuntimeError("a wire came loose")
        if any(work.sequence.job in self.cursed for work in works):
            raise ValueError("not this one")
        logits = torch.zeros(sum(work.keep for work in works), VOCABULARY)
        at = 0
        for work in works:
            ids, end = work.sequence.ids, work.start + work.count
            assert work.sequence.slot is not None
            place = work.sequence.slot.place
            held = self.token_rows.setdefault((place.capacity, place.index), [])
            assert held[: work.start] == ids[: work.start]
            held[work.start :] = ids[work.start : end]
            for position in range(end - work.keep, end):
                logits[at, following(ids[: position + 1])] = 5.0
                if work.sequence.job in self.nan:
                    logits[at] = torch.nan
                at += 1
        return list(works), logits


class Loop(RuleBasedStateMachine):
    @initialize(
        budget_rows=st.integers(1, 5), max_batch=st.integers(1, 6), prefixes=st.booleans(), alone=st.integers(4, 40)
    )
    def begin(self, budget_rows: int, max_batch: int, prefixes: bool, alone: int) -> None:
        logging.getLogger("drivetrain.engines.native.stepper").disabled = True
        index = PrefixIndex(block=4) if prefixes else None

        def forget(slot: CacheRow) -> None:
            if index is not None:
                index.forget(slot)

        rows = KvRows(capacities(CONTEXT, 8), token_bytes=1, budget_bytes=CONTEXT * budget_rows, evicted=forget)
        scheduler = Scheduler(rows, index, max_batch=max_batch, budget=TokenBudget(alone=alone, beside=5), headroom=2)
        self.tensors = Tensors()
        self.stepper = Stepper(scheduler, self.tensors)  # type: ignore[arg-type]  # lists for tensors
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
        prompt_logprobs=st.sampled_from([None, None, 0]),
        fate=st.sampled_from(["well", "well", "well", "cursed", "nan"]),
    )
    def add(self, shared: int, own: int, max_tokens: int, n: int, prompt_logprobs: int | None, fate: str) -> None:
        number = len(self.jobs)
        request = EngineRequest(
            request_id=str(number),
            prompt_ids=(1,) * (shared + 1) + (2 + number % 4,) * own,
            context_length=CONTEXT,
            max_tokens=max_tokens,
            stop_ids=frozenset({STOP}),
            seeds=tuple(range(n)),
            sampling=Sampling(temperature=0.0),
            prompt_logprobs=prompt_logprobs,
        )
        job = Job.of(request, number)
        self.jobs.append(job)
        self.wanted[job] = answer(request.prompt_ids, job.limit)
        self.said[job], self.reasons[job] = [[] for _ in range(n)], {}
        {"cursed": self.tensors.cursed, "nan": self.tensors.nan, "well": set()}[fate].add(job)
        self._hear(self.stepper.add(job))

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
        self.tensors.fail_forward = True
        self._hear(self.stepper.step())
        self.tensors.fail_forward = False
        self.unlucky |= {job for job in set(self.errors) - ended if self.errors[job] is not None}

    @precondition(lambda self: not self.stepper.idle)
    @rule()
    def the_cache_breaks_once(self) -> None:
        """The youngest of the step ends; the others compute again."""
        ended = set(self.errors)
        self.tensors.fail_apply = True
        self._hear(self.stepper.step())
        hit = set(self.errors) - ended
        assert len(hit) == 1
        assert all(isinstance(self.errors[job], OutOfMemory) for job in hit)
        self.unlucky |= hit

    @precondition(lambda self: self.jobs)
    @rule(which=st.integers(0, 100))
    def abort(self, which: int) -> None:
        job = self.jobs[which % len(self.jobs)]
        self.aborted.add(job)
        self._hear(self.stepper.abort(job))
        assert self.overs[job] == 1

    @precondition(lambda self: self.jobs)
    @rule(which=st.integers(0, 100), index=st.integers(0, 5))
    def finish(self, which: int, index: int) -> None:
        job = self.jobs[which % len(self.jobs)]
        self.finished.add((job, index % len(job.sequences)))
        self._hear(self.stepper.finish(job, index % len(job.sequences)))

    @invariant()
    def all_is_in_order(self) -> None:
        self.stepper.scheduler.check()
        for job in self.jobs:
            assert self.overs[job] == job.ended
        if self.stepper.idle:
            self.stepper.check_at_rest()
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

    def _judge(self, job: Job) -> None:
        error = self.errors[job]
        if job in self.aborted or job in self.unlucky:
            return
        if error is not None:
            assert isinstance(error, EngineFailed)
            assert job in self.tensors.cursed | self.tensors.nan
            return
        wanted = self.wanted[job]
        for index, ids in enumerate(self.said[job]):
            if (job, index) in self.finished:
                continue
            assert ids == wanted
            last = FinishReason.STOP if wanted[-1:] == [STOP] else FinishReason.LENGTH
            assert self.reasons[job][index] is last

    def _hear(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
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
TestLoop.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)

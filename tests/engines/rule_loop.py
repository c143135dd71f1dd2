"""The scheduler and the pool of the engine with a rule for a model (`rule_model.py`), step by step."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

pytest.importorskip("torch")

from rule_model import RuleModel, answer

from drivetrain.core.engine import EngineRequest, TokenStep
from drivetrain.core.sampling import Sampling
from drivetrain.engines.native.kv.blocks import BlockPool
from drivetrain.engines.native.kv.groups import Window
from drivetrain.engines.native.schedule.budget import TokenBudget
from drivetrain.engines.native.schedule.scheduler import Scheduler
from drivetrain.engines.native.schedule.sequence import Job
from drivetrain.engines.native.stepper import NewStep, Stepper

LIMIT = 12


class Loop:
    """The scheduler, the pool and the cache of the engine, with a rule for a model."""

    def __init__(self, sizes: int | dict[Window, int], *, max_batch: int = 200, chunk: int = 512) -> None:
        self.pool = BlockPool(sizes, chunk=chunk)
        self.model = RuleModel(self.pool)
        self.scheduler = Scheduler(self.pool, max_batch=max_batch, budget=TokenBudget(alone=512, beside=512))
        self.stepper = Stepper(self.scheduler, self.model)  # type: ignore[arg-type]  # a rule for a model
        self.said: dict[tuple[Job, int], list[int]] = {}
        self.jobs: list[Job] = []

    def add(self, ids: Sequence[int], *, n: int = 1, salt: str | None = None, limit: int = LIMIT) -> Job:
        request = EngineRequest(
            request_id=str(len(self.jobs)),
            prompt_ids=tuple(ids),
            context_length=10_000,
            max_tokens=limit,
            seeds=tuple(range(n)),
            sampling=Sampling(temperature=0.0),
            cache_salt=salt,
        )
        self.jobs.append(Job.of(request, len(self.jobs)))
        self.stepper.add(self.jobs[-1])
        return self.jobs[-1]

    def step(self) -> None:
        for output in self.stepper.step():
            if isinstance(output, NewStep) and isinstance(step := output.step, TokenStep):
                self.said.setdefault((output.job, step.index), []).extend(step.token_ids)
        assert not self.model.wrong
        self.scheduler.check()

    def until_all_decode(self) -> None:
        while self.scheduler.waiting or not all(sequence.decodes for sequence in self.scheduler.running):
            self.step()

    def to_the_end(self) -> None:
        while not self.stepper.idle:
            self.step()
        assert self.pool.num_held == 0
        for job in self.jobs:
            for index in range(len(job.sequences)):
                assert self.said[job, index] == answer(job.request.prompt_ids, job.limit, stop=None)

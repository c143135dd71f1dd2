"""The body of the loop: plan, compute, choose ids, report. Everything here runs on the engine's thread."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from typing import Any

from drivetrain.core.engine import IdLogprobs, PromptStep, Step, TokenStep
from drivetrain.core.errors import (
    ContextOverflow,
    DeviceLost,
    DrivetrainError,
    EngineFailed,
    InvalidRequest,
    OutOfMemory,
)
from drivetrain.core.results import EngineCounts, FinishReason, KvBlocks
from drivetrain.engines.checkpoint import errors
from drivetrain.engines.native.embedding import CallOver, NativeEmbedder
from drivetrain.engines.native.kv.books import BooksDisagree
from drivetrain.engines.native.model.runner import Runner
from drivetrain.engines.native.schedule.budget import Room
from drivetrain.engines.native.schedule.lookup import Lookup
from drivetrain.engines.native.schedule.scheduler import Scheduler
from drivetrain.engines.native.schedule.sequence import MOST_FORCED, Job, Sequence, Work
from drivetrain.engines.sample.masks import Masks
from drivetrain.engines.sample.row import Row
from drivetrain.engines.sample.sampler import Outcome, Sampled, Unsampled, logprobs_of, sample
from drivetrain.engines.sample.shaping import Shape, shape_of

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NewStep:
    """A step for the reader of this job."""

    job: Job
    step: Step


@dataclass(frozen=True, slots=True)
class Ended:
    """The job has ended, perhaps with an error, and holds nothing."""

    job: Job
    error: DrivetrainError | None = None


Output = NewStep | Ended | CallOver


Taken = list[Sampled] | Unsampled | None
"""What a work gives its sequence: ids, more than one if a draft was right; none if it has to be done again without the
draft, which may be at fault; an error; None if only the prompt was to be scored."""


@dataclass(slots=True)
class StepResult:
    """What came of a step: its works, the ids, and the jobs that failed."""

    works: list[Work] = field(default_factory=list)
    outcomes: list[tuple[Work, Taken]] = field(default_factory=list)
    failed: list[tuple[Job, DrivetrainError]] = field(default_factory=list)


class Stepper:
    """`add`, `finish` and `abort` between steps; `step` while not `idle`."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        embedder: NativeEmbedder | None = None,
        *,
        speculates: bool = False,
    ) -> None:
        """`speculates`: whether sequences look up what may come next."""
        self.scheduler = scheduler
        self.embedder = embedder
        self.runner = runner
        self.steps_run = 0
        self._mask_s = 0.0
        self._speculates = speculates
        self._accepted = self._refused = 0

    @property
    def idle(self) -> bool:
        return self.scheduler.idle and (self.embedder is None or self.embedder.idle)

    @property
    def passes_run(self) -> int:
        """Through the model, those for texts included."""
        return self.steps_run + (self.embedder.passes_run if self.embedder is not None else 0)

    @property
    def kv_blocks(self) -> KvBlocks:
        """Read from other threads, like the next two."""
        pool = self.scheduler.pool
        return KvBlocks(pool.num_held, pool.num_shared, pool.num_idle, pool.num_blocks)

    @property
    def kv_used(self) -> float:
        return self.scheduler.pool.share_held

    @property
    def counts(self) -> EngineCounts:
        drafts = (self._accepted, self._refused) if self._speculates else (None, None)
        return EngineCounts(self.scheduler.num_preemptions, self._mask_s, *drafts)

    def add(self, job: Job) -> list[Output]:
        """A request that the cache could never hold ends here: in a plan it would make everybody fail."""
        if (error := self._refusal(job)) is not None:
            return self.abort(job, error)
        if job.limit == 0 and job.request.prompt_logprobs is None:
            job.prompt_sent = True
            return [*self._all_end(job), Ended(job)]
        if self._speculates and not Shape.wanted(job.request):  # a shape cannot take back what it has read
            for sequence in job.sequences:
                sequence.lookup = Lookup()
        self.scheduler.add(job)
        return []

    def finish(self, job: Job, index: int) -> list[Output]:
        """End one choice from outside."""
        ended_before = job.ended
        self.scheduler.end(job.sequences[index])
        return [Ended(job)] if job.ended and not ended_before else []

    def abort(self, job: Job, error: DrivetrainError | None = None, *, poisoned: bool = False) -> list[Output]:
        if job.ended:
            return []
        self.scheduler.end_job(job, poisoned=poisoned)
        return [Ended(job, error)]

    def step(self) -> list[Output]:
        """One step: texts to embed, then everybody else. Raises `DeviceLost` only: any other failure ends the requests
        at fault, and no others."""
        room = self.scheduler.room()
        over: list[Output] = []
        if self.embedder is not None and not self.embedder.idle:
            over += self.embedder.step(share := room.shared())
            room.take_back(share)
        return over if self.scheduler.idle else [*over, *self._step(room)]

    def _step(self, room: Room) -> list[Output]:
        works: list[Work] = []
        try:
            works = self.scheduler.schedule(room)
            self._prepare()
        except BaseException as exc:  # noqa: BLE001 - the boundary: everything becomes a typed ending, panics too
            return self._not_begun(works, exc)
        if not works:
            return []  # texts to embed hold the blocks that the oldest one needs
        self.steps_run += 1
        done = self._compute(works)
        for work, taken in done.outcomes:
            self._take_draft(work, taken)
        self.scheduler.computed([work for work in done.works if work.sequence.table is not None])
        failed = [output for job, error in done.failed for output in self.abort(job, error, poisoned=True)]
        return [*failed, *self._outputs(done.outcomes)]

    def _refusal(self, job: Job) -> DrivetrainError | None:
        prompt, largest = len(job.request.prompt_ids), self.scheduler.pool.longest
        if not prompt:
            return InvalidRequest("the prompt is empty", param="prompt")
        if prompt + job.limit > largest:
            return ContextOverflow(
                f"prompt and answer are up to {prompt + job.limit:,} tokens; the KV cache holds {largest:,}",
                prompt_tokens=prompt,
                limit=largest,
            )
        return None

    def check_at_rest(self) -> None:
        """While `idle`: nothing is held. Else `EngineFailed`: our own defect."""
        try:
            self.scheduler.check()
        except BooksDisagree as exc:
            raise EngineFailed(f"the native engine's books of the KV cache do not agree: {exc}") from exc

    def _prepare(self) -> None:
        """Bring the tensors up to the accounting. If that fails, neither can be trusted."""
        try:
            self.runner.cache.apply(self.scheduler.pool.drain())
        except BaseException:
            self.reset()
            raise

    def reset(self) -> None:
        """Drop all blocks; what still runs computes again."""
        self.scheduler.lose_all_blocks()

    def _compute(self, works: list[Work]) -> StepResult:
        """The forward pass and the choice of ids. If that fails, each request is tried alone: one may be at fault."""
        try:
            with Masks(work.sequence for work in works if work.samples) as masks:  # computed beside the pass
                logits = self.runner.forward(works)
                outcomes = self._choose(works, logits, masks)
            self._mask_s += masks.spent_s
            return StepResult(works, outcomes)
        except BaseException as exc:  # noqa: BLE001 - the boundary, as above
            error = _typed(exc)
        jobs = list(dict.fromkeys(work.sequence.job for work in works))
        if len(jobs) == 1:
            return StepResult(failed=[(jobs[0], error)])
        _log.warning(
            "a step of %d requests failed (%s); each is tried alone", len(jobs), type(error.__cause__).__name__
        )
        all_done = StepResult()
        for job in jobs:
            alone = self._compute([work for work in works if work.sequence.job is job])
            all_done.works += alone.works
            all_done.outcomes += alone.outcomes
            all_done.failed += alone.failed
        return all_done

    def _choose(self, works: list[Work], logits: Any, masks: Masks) -> list[tuple[Work, Taken]]:
        """For each work that reaches the end."""
        places: list[int] = []
        rows: list[Row] = []
        ends: list[tuple[Work, int]] = []  # with the number of rows
        at = 0
        for work in works:
            if work.keep > 1 + len(work.draft) or (work.keep and not work.samples):
                self._prompt_logprobs(work, logits[at : at + work.keep])
            at += work.keep
            if work.samples:
                mine = work.rows if work.sequence.job.limit else []
                rows += mine
                places += range(at - len(mine), at)
                ends.append((work, len(mine)))
        outcomes: Iterator[Outcome] = iter(())
        if rows:
            last = logits if len(places) == logits.shape[0] else logits[places]
            outcomes = iter(sample(last, rows, masks))
        return [(work, _taken(work, list(islice(outcomes, count))) if count else None) for work, count in ends]

    def _take_draft(self, work: Work, taken: Taken) -> None:
        """The ids of a draft that were right are there already; the last id that was sampled is new."""
        sequence = work.sequence
        if not isinstance(taken, list) or not work.draft:
            return
        if not taken:
            sequence.lookup = None
            self.scheduler.preempt(sequence, poisoned=True)
            return
        right = len(taken) - 1
        sequence.ids += work.draft[:right]
        assert sequence.lookup is not None
        sequence.lookup.judge(right)
        self._accepted += right
        self._refused += len(work.draft) - right

    def _prompt_logprobs(self, work: Work, logits: Any) -> None:
        """The logprobs of the prompt's ids that follow the positions of this piece."""
        job = work.sequence.job
        if job.prompt_sent or job.request.prompt_logprobs is None:
            return
        following = job.request.prompt_ids[work.start + 1 : work.start + work.count + 1]
        del job.prompt_logprobs[work.start :]  # a preempted one comes here twice
        job.prompt_logprobs += logprobs_of(logits[: len(following)], following, job.request.prompt_logprobs)

    def _outputs(self, outcomes: list[tuple[Work, Taken]]) -> Iterator[Output]:
        for work, taken in outcomes:
            sequence, job = work.sequence, work.sequence.job
            if sequence.ended or taken == []:
                continue
            if not job.prompt_sent:
                job.prompt_sent = True
                yield NewStep(job, _prompt_step(job))
            if taken is None:
                yield from self._all_end(job)
            elif isinstance(taken, Unsampled):
                yield from self.abort(job, taken.error, poisoned=taken.poisoned)
                continue
            else:
                yield NewStep(job, self._advance(sequence, taken))
            if job.ended:
                yield Ended(job)

    def _advance(self, sequence: Sequence, sampled: list[Sampled]) -> TokenStep:
        """One more id for this sequence, perhaps its last, behind those of a draft and before those of a grammar."""
        newest = sampled[-1].token_id
        sequence.ids.append(newest)
        sequence.forced = 0
        ids, reason = [one.token_id for one in sampled], None
        if newest in sequence.request.stop_ids:
            reason = FinishReason.STOP
        else:
            ids += self._force(sequence)
        if reason is None and sequence.num_sampled >= sequence.job.limit:
            reason = FinishReason.LENGTH
        if reason is not None:
            self.scheduler.end(sequence)
        logprobs = tuple(one.logprobs for one in sampled if one.logprobs is not None)
        return TokenStep(sequence.index, tuple(ids), logprobs or None, reason)

    def _force(self, sequence: Sequence) -> list[int]:
        """Ids about which the grammar leaves no choice need no step each, unless their logprobs are wanted."""
        request = sequence.request
        if request.grammar is None or request.logprobs is not None:
            return []
        room = sequence.job.limit - sequence.num_sampled
        forced = shape_of(sequence).forced(sequence.ids)[: min(room, MOST_FORCED)]
        sequence.ids += forced
        sequence.forced = len(forced)
        return forced

    def _all_end(self, job: Job) -> Iterator[Output]:
        """No id was asked for."""
        self.scheduler.end_job(job)
        for sequence in job.sequences:
            yield NewStep(job, TokenStep(sequence.index, (), None, FinishReason.LENGTH))

    def _not_begun(self, works: list[Work], exc: BaseException) -> list[Output]:
        """The cache could not be prepared: the youngest request of the plan ends, the others compute again.

        If there was not even a plan, all requests end.
        """
        error = _typed(exc)
        jobs = list(dict.fromkeys(sequence.job for sequence in (*self.scheduler.running, *self.scheduler.waiting)))
        if works:
            jobs = [max((work.sequence for work in works), key=lambda sequence: sequence.order).job]
        outputs = [output for job in jobs for output in self.abort(job, errors.again(error), poisoned=True)]
        if not works:
            self.reset()
        return outputs


def _typed(exc: BaseException) -> DrivetrainError:
    """Frees what the failed frames held. Raises `DeviceLost`: that ends every request, not one."""
    error = errors.while_running(exc)
    if isinstance(error, DeviceLost):
        raise error
    if isinstance(error, OutOfMemory):
        with contextlib.suppress(Exception):  # a broken device says so to the next request as well
            errors.free_cached_memory()
    return error


def _taken(work: Work, outcomes: list[Outcome]) -> Taken:
    """A sampled id that is the draft's next one makes the outcome behind it count as well.

    So the ids are those of one step each: the draw of a position depends on the seed and the ids before it alone.
    """
    taken: list[Sampled] = []
    for outcome, drafted in zip_longest(outcomes, work.draft):
        if isinstance(outcome, Unsampled):
            return taken or ([] if work.draft else outcome)
        taken.append(outcome)
        if outcome.token_id != drafted or drafted in work.sequence.request.stop_ids:
            break
    return taken


def _prompt_step(job: Job) -> PromptStep:
    logprobs = None
    if job.request.prompt_logprobs is not None:
        logprobs = (IdLogprobs(None), *job.prompt_logprobs)
    return PromptStep(None, logprobs, job.sequences[0].cached)

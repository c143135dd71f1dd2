"""One request and its choices on their way through the engine. No tensors here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from drivetrain.core.engine import EngineRequest, IdLogprobs
from drivetrain.engines.base.room import room
from drivetrain.engines.native.kv.tables import BlockTable
from drivetrain.engines.native.schedule.lookup import Lookup
from drivetrain.engines.sample.row import Row

MOST_FORCED = 16
"""Ids that a grammar leaves no choice about and that one step computes at once."""


@dataclass(frozen=True, slots=True)
class Awaited:
    """The beginning of a prompt that somebody else computes: the first `length` tokens of this table."""

    table: BlockTable
    length: int

    @property
    def is_there(self) -> bool:
        return self.table.alive and self.table.filled >= self.length


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice. `ids` are the prompt and what was sampled; `computed` of them are in the blocks of `table`.

    A sequence without a table waits. `order` is its place among all: older ones go first and are never preempted for
    younger ones. To the sampler it is a `Row` (`engines/sample/row.py`).
    """

    job: Job
    index: int
    order: tuple[int, int]
    ids: list[int]
    computed: int = 0
    cached: int = 0
    """How many of the prompt's tokens were in the cache when it first got blocks."""
    table: BlockTable | None = None
    awaits: Awaited | None = None
    forced: int = 0
    """How many of the ids, the last ones, a grammar forced behind the newest sampled one."""
    lookup: Lookup | None = None
    """Where its drafts come from. None: it gets none."""
    ended: bool = False
    shape: Any = None
    """The sampler's own notes."""

    @property
    def request(self) -> EngineRequest:
        return self.job.request

    @property
    def seed(self) -> int:
        return self.request.seeds[self.index]

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        return self.request.prompt_ids

    @property
    def prompt_length(self) -> int:
        return len(self.request.prompt_ids)

    @property
    def num_sampled(self) -> int:
        return len(self.ids) - self.prompt_length

    @property
    def pending(self) -> int:
        """Ids that are not computed yet."""
        return len(self.ids) - self.computed

    @property
    def decodes(self) -> bool:
        """Whether its next step is not a part of a prompt: one new id, or a few that a grammar forced behind it."""
        return self.pending == 1 or (self.forced > 0 and self.pending == self.forced + 1)

    @property
    def leads(self) -> bool:
        """The first choice computes the prompt; the others begin with its blocks."""
        return self.index == 0

    @property
    def scores_prompt(self) -> bool:
        """Whether the prompt's logprobs are taken from this choice: the first one that has not ended."""
        job = self.job
        if self.request.prompt_logprobs is None or job.prompt_sent:
            return False
        return next((one for one in job.sequences if not one.ended), None) is self


@dataclass(slots=True, eq=False)
class Job:
    """One request."""

    request: EngineRequest
    number: int
    sequences: list[Sequence] = field(default_factory=list)
    spawned: bool = False
    """Whether the choices after the first one were let in."""
    prompt_sent: bool = False
    prompt_logprobs: list[IdLogprobs] = field(default_factory=list)

    @classmethod
    def of(cls, request: EngineRequest, number: int) -> Job:
        job = cls(request, number)
        job.sequences = [
            Sequence(job, index, (number, index), list(request.prompt_ids)) for index in range(len(request.seeds))
        ]
        return job

    @property
    def limit(self) -> int:
        """How many ids each choice may get."""
        return max(room(self.request), 0)

    @property
    def salt(self) -> str | None:
        return self.request.cache_salt

    @property
    def ended(self) -> bool:
        return all(sequence.ended for sequence in self.sequences)

    @property
    def may_use_cache(self) -> bool:
        """A named seed asks for the same rounding again, and prompt logprobs need every position computed."""
        return not self.request.seeded and self.request.prompt_logprobs is None


@dataclass(frozen=True, slots=True)
class Work:
    """What one sequence does in one step: `count` ids from `start` on go through the model.

    The last `keep` of these positions need logits. `draft` are ids behind the known ones that may turn out to be right;
    they are among the `count`.
    """

    sequence: Sequence
    start: int
    count: int
    keep: int
    draft: tuple[int, ...] = ()

    @property
    def ids(self) -> list[int]:
        return [*self.sequence.ids, *self.draft] if self.draft else self.sequence.ids

    @property
    def table(self) -> BlockTable:
        """Only a sequence that has one has work."""
        assert self.sequence.table is not None
        return self.sequence.table

    @property
    def samples(self) -> bool:
        """Whether an id is sampled after it: the positions reach the end of the known ids."""
        return self.start + self.count == len(self.sequence.ids) + len(self.draft)

    @property
    def rows(self) -> list[Row]:
        """Of the positions that are sampled after it: the sequence itself, or what it will be if the draft is right."""
        if not self.draft:
            return [self.sequence]
        return [Supposed(self.sequence, self.draft[:size]) for size in range(len(self.draft) + 1)]


@dataclass(slots=True)
class Supposed:
    """The sequence with some ids of a draft behind it. A `Row` of the sampler's, which keeps no notes on it."""

    sequence: Sequence
    draft: tuple[int, ...]
    shape: Any = None

    @property
    def request(self) -> EngineRequest:
        return self.sequence.request

    @property
    def seed(self) -> int:
        return self.sequence.seed

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        return self.sequence.prompt_ids

    @property
    def ids(self) -> list[int]:
        return [*self.sequence.ids, *self.draft]

    @property
    def num_sampled(self) -> int:
        return self.sequence.num_sampled + len(self.draft)

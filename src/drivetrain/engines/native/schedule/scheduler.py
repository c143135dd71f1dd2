"""Which sequences do what in the next step: first come, first served, and decoding never stops. No tensors here.

Each step decodes every running sequence and fills what `budget.py` leaves room for with chunks of prompts.
A sequence that needs a block when none is left gets those of the youngest running sequence, which waits again and later
computes what is no longer in the cache.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable

from drivetrain.engines.native.kv.blocks import BlockPool
from drivetrain.engines.native.kv.books import must
from drivetrain.engines.native.kv.groups import Beginning, common
from drivetrain.engines.native.kv.tables import BlockTable
from drivetrain.engines.native.schedule.budget import Room, TokenBudget
from drivetrain.engines.native.schedule.sequence import Awaited, Job, Sequence, Work

HEADROOM = 64
"""Ids that must have room behind a prompt before it is let in."""


class Scheduler:
    """`schedule` decides, `computed` notes what was done, `end` takes a sequence out at any time between steps.

    `waiting` and `running` are in order of arrival.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        max_batch: int,
        budget: TokenBudget | None = None,
        headroom: int = HEADROOM,
    ) -> None:
        self.pool = pool
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self._max_batch = max_batch
        self.budget = budget or TokenBudget()
        self._headroom = headroom
        self._no_room: Sequence | None = None
        self._num_released_then = 0
        """The first that found no room, and how often tables had been released by then."""

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    def add(self, job: Job) -> None:
        """Let a request in: its first choice now, the others once the prompt is computed."""
        insort(self.waiting, job.sequences[0], key=_order)

    def room(self) -> Room:
        """What prompts, and texts to embed, may cost in the next step."""
        decoded = [sequence.computed for sequence in self.running if sequence.decodes]
        return Room(self.budget, decoded, len(self._prompts()))

    def schedule(self, room: Room | None = None) -> list[Work]:
        """The next step's work, at least one piece unless `idle` or others hold the blocks. Takes blocks for it.

        `room` is that of the step, if something else has had a part of it.
        """
        work = self._decodes()
        room = self.room() if room is None else room
        self._continue_prompts(work, room)
        work = [piece for piece in work if piece.sequence.table is not None]  # others may have given way by then
        self._admit_waiting(work, room)
        return self._with_drafts(work)

    def computed(self, works: list[Work]) -> None:
        """The step was done. Call this when the right ids of drafts were added, and before others are added or a
        sequence is ended. Keys and values of wrong ids do not count."""
        for work in works:
            sequence = work.sequence
            assert sequence.table is not None
            sequence.computed = min(work.start + work.count, len(sequence.ids))
            self.pool.fill(sequence.table, sequence.ids, sequence.computed)
            if work.start < sequence.prompt_length <= sequence.computed and sequence.leads:
                self._spawn(sequence.job)

    def end(self, sequence: Sequence, *, poisoned: bool = False) -> None:
        """The sequence is over, for whatever reason; what it computed may serve later prompts."""
        if sequence.ended:
            return
        sequence.ended = True
        if sequence.leads:
            self._spawn(sequence.job)
        if sequence.table is not None:
            self.running.remove(sequence)
            self.pool.release(sequence.table, poisoned=poisoned)
            sequence.table = None
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def end_job(self, job: Job, *, poisoned: bool = False) -> None:
        """All its choices."""
        job.spawned = True
        for sequence in job.sequences:
            self.end(sequence, poisoned=poisoned)

    def preempt(self, sequence: Sequence, *, poisoned: bool = False) -> None:
        """Back to waiting. It keeps what was sampled. `poisoned`: its blocks are not to be trusted."""
        assert sequence.table is not None
        self.running.remove(sequence)
        if sequence.table.alive:
            self.pool.release(sequence.table, poisoned=poisoned)
        sequence.table, sequence.awaits, sequence.computed = None, None, 0
        insort(self.waiting, sequence, key=_order)
        self.num_preemptions += 1

    def open(self, order: tuple[int, int], length: int) -> BlockTable | None:
        """Blocks for something else that has this place in the order; None if it must wait for older ones."""
        if self.waiting and self.waiting[0] is self._no_room and self.waiting[0].order < order:
            return None
        younger = [sequence.table for sequence in self.running if sequence.order > order and sequence.table is not None]
        if not self.pool.fits(length, younger):
            return None  # nobody gives way for nothing
        while (table := self.pool.open(length)) is None:
            self.preempt(self.running[-1])
        return table

    def enlarge(self, order: tuple[int, int], table: BlockTable, length: int) -> bool:
        """The same for the next step of it; False if it must wait for older ones."""
        return self._room_made(order, lambda: self.pool.enlarge(table, length))

    def lose_all_blocks(self) -> None:
        """After a fault in the tensors: what still runs waits again."""
        self.pool.reset()
        for sequence in list(self.running):
            self.preempt(sequence)

    def check(self) -> None:
        """The books agree: every table belongs to one running sequence. Raises `BooksDisagree` otherwise."""
        tables = [sequence.table for sequence in self.running if sequence.table is not None]
        must(len(set(tables)) == len(self.running), "who runs has no table, or another one's")
        self.pool.check(tables)
        must(all(sequence.table is None for sequence in self.waiting), "who waits has a table")
        must(not any(sequence.ended for sequence in (*self.running, *self.waiting)), "what has ended is still here")
        for queue in (self.running, self.waiting):
            must(queue == sorted(queue, key=_order), "the order of arrival is lost")

    def _decodes(self) -> list[Work]:
        ready = [sequence for sequence in self.running if sequence.decodes]
        return [
            _work(sequence, sequence.pending)
            for sequence in ready  # oldest first, so that a preempted one has no work yet
            if sequence.table is not None and self._fit(sequence)
        ]

    def _with_drafts(self, works: list[Work]) -> list[Work]:
        """With ids behind those of who looks them up, as many as the step computes while it reads the weights."""
        left = int(self.budget.riding) - sum(work.count for work in works)
        made = []
        for index, work in enumerate(works):
            drafted = self._with_draft(work, max(left // (len(works) - index), 1)) if left > 0 else work
            left -= len(drafted.draft)
            made.append(drafted)
        return made

    def _with_draft(self, work: Work, most: int) -> Work:
        """Nobody gives way for a draft."""
        sequence = work.sequence
        if sequence.lookup is None or sequence.table is None or not work.samples or work.start < sequence.prompt_length:
            return work
        known = len(sequence.ids)
        most = min(most, self.pool.chunk - work.count, sequence.job.limit - sequence.num_sampled - 1)
        draft = sequence.lookup.draft(sequence.ids, most)
        if not draft or not self.pool.enlarge(sequence.table, known + len(draft)):
            return work
        return Work(sequence, work.start, work.count + len(draft), 1 + len(draft), draft)

    def _prompts(self) -> list[Sequence]:
        """Those with a part of their prompt to compute now, or that might begin with it."""
        begun = [sequence for sequence in self.running if not sequence.decodes and sequence.awaits is None]
        if self._is_stuck:
            return begun
        admissible = self.waiting[: self._max_batch - len(self.running)]
        return begun + [sequence for sequence in admissible if sequence.leads]

    @property
    def _is_stuck(self) -> bool:
        """Whether there was no room for the first that waits, and nothing was released since. Looking for its
        beginning again in each step would cost all streams time in proportion to the prompt."""
        stuck = bool(self.waiting) and self.waiting[0] is self._no_room
        return stuck and self._num_released_then == self.pool.num_released

    def _continue_prompts(self, work: list[Work], room: Room) -> None:
        """Chunks for sequences that run already, oldest first.

        Their tables have room for the whole prompt, but for what comes later in a window.
        """
        for sequence in list(self.running):
            if not room or sequence.table is None or sequence.decodes:
                continue
            if self._may_go_on(sequence) and self._fit(sequence):
                self._add_chunk(work, sequence, room)

    def _admit_waiting(self, work: list[Work], room: Room) -> None:
        while room and self.waiting and len(self.running) < self._max_batch and not self._is_stuck:
            sequence = self.waiting[0]
            if not self._admit(sequence):
                self._no_room, self._num_released_then = sequence, self.pool.num_released
                return
            self.waiting.remove(sequence)
            insort(self.running, sequence, key=_order)
            if sequence.awaits is None:
                self._add_chunk(work, sequence, room)

    def _add_chunk(self, work: list[Work], sequence: Sequence, room: Room) -> None:
        most = min(sequence.pending, self.pool.chunk)
        if count := room.take(sequence.computed, most, lambda: self._shorter_waits(sequence)):
            work.append(_work(sequence, count))

    def _shorter_waits(self, sequence: Sequence) -> bool:
        """Whether a prompt that came later has at most half as much left: it should not wait for all of a long one. How
        much is left of one that waits and begins in the cache is not known, so it counts as shorter. Among equals the
        first goes first, since taking turns would make each as late as the last."""
        later = [one for one in self._prompts() if one.order > sequence.order]
        return any(2 * one.pending <= sequence.pending for one in later) or any(map(self._begins_in_cache, later))

    def _begins_in_cache(self, sequence: Sequence) -> bool:
        """Whether the first block of one that waits is there."""
        return sequence.table is None and bool(self._find(sequence, self.pool.block_tokens))

    def _admit(self, sequence: Sequence) -> bool:
        """Give it blocks for its ids and some more, or, if it waits for its beginning, for what comes behind that."""
        table, start = sequence.job.sequences[0].table, sequence.prompt_length - 1
        if not sequence.leads and table is not None and table.filled > start > 0 and self.pool.can_fork(table, start):
            return self._begin(sequence, self.pool.fork(table, start, self._wanted(sequence)))
        found = self._find(sequence)
        awaited = self._being_computed(sequence, len(found) * self.pool.block_tokens)
        if awaited is None:
            return self._begin(sequence, self._opened(sequence, found))
        behind = self._wanted(sequence) - awaited.length
        sequence.table = self.pool.open(len(found) * self.pool.block_tokens + behind, found, sequence.job.salt)
        sequence.awaits = awaited if sequence.table is not None else None
        return sequence.table is not None

    def _opened(self, sequence: Sequence, found: list[Beginning]) -> BlockTable | None:
        return self.pool.open(self._wanted(sequence), found, sequence.job.salt)

    def _begin(self, sequence: Sequence, table: BlockTable | None) -> bool:
        """Where this table is filled up to. False: there is none, for want of room."""
        if table is None:
            return False
        sequence.table, sequence.computed = table, table.filled
        if not sequence.num_sampled and sequence.leads:
            sequence.cached = table.filled
        return True

    def _wanted(self, sequence: Sequence) -> int:
        limit = sequence.prompt_length + sequence.job.limit
        return max(min(len(sequence.ids) + self._headroom, limit), len(sequence.ids))

    def _find(self, sequence: Sequence, most: int | None = None) -> list[Beginning]:
        """What is in the cache of its beginning, or of its first `most` ids: always less than all its ids."""
        if not sequence.job.may_use_cache:
            return []
        limit = len(sequence.ids) - 1
        return self.pool.find(sequence.ids, limit if most is None else min(most, limit), sequence.job.salt)

    def _being_computed(self, sequence: Sequence, known: int) -> Awaited | None:
        """The prompt under way with the longest common beginning, if that saves a block or more.

        Requests that come at once with the same beginning would otherwise each compute it.
        """
        if not self.pool.shares or not sequence.job.may_use_cache:
            return None
        best, size = None, self.pool.block_tokens
        for other in self.running:
            under_way = other.computed < other.prompt_length and other.awaits is None
            if not under_way or other.table is None or other.job.salt != sequence.job.salt:
                continue
            behind = slice(known, known + size)
            if other.prompt_ids[behind] == tuple(sequence.ids[behind]):  # else it has no more in common than is known
                length = common(other.prompt_ids, sequence.ids, len(sequence.ids) - 1) // size * size
                if length > known:
                    best, known = Awaited(other.table, length), length
        return best

    def _may_go_on(self, sequence: Sequence) -> bool:
        """Whether it no longer waits for its beginning. The blocks that it has kept free are then for the rest."""
        awaited = sequence.awaits
        if awaited is None:
            return True
        if awaited.table.alive and not awaited.is_there:
            return False
        assert sequence.table is not None
        self.pool.release(sequence.table)
        sequence.awaits = None
        found = self._find(sequence)
        return self._insist(sequence, lambda: self._begin(sequence, self._opened(sequence, found)))

    def _fit(self, sequence: Sequence) -> bool:
        """See that its table holds its ids."""
        table = sequence.table
        assert table is not None
        return self._insist(sequence, lambda: self.pool.enlarge(table, len(sequence.ids)))

    def _insist(self, sequence: Sequence, attempt: Callable[[], bool]) -> bool:
        """Preempt the youngest until it succeeds. False: the youngest was this one, which waits again itself."""
        if not (succeeded := self._room_made(sequence.order, attempt)):
            self.preempt(sequence)
        return succeeded

    def _room_made(self, order: tuple[int, int], attempt: Callable[[], bool]) -> bool:
        """Preempt the youngest until it succeeds. False: all that are left are as old as this."""
        while not attempt():
            if not self._make_way(order):
                return False
        return True

    def _make_way(self, order: tuple[int, int]) -> bool:
        """Preempt the youngest sequence, if it is younger than this."""
        youngest = self.running[-1] if self.running else None
        if youngest is None or youngest.order <= order:
            return False
        self.preempt(youngest)
        return True

    def _spawn(self, job: Job) -> None:
        if not job.spawned:
            job.spawned = True
            for sequence in job.sequences[1:]:
                if not sequence.ended:
                    insort(self.waiting, sequence, key=_order)


def _order(sequence: Sequence) -> tuple[int, int]:
    return sequence.order


def _work(sequence: Sequence, count: int) -> Work:
    start = sequence.computed
    reaches_end = start + count == len(sequence.ids)
    if sequence.scores_prompt and start < sequence.prompt_length:
        return Work(sequence, start, count, keep=count)
    return Work(sequence, start, count, keep=int(reaches_end))

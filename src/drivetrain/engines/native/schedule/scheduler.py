"""Which sequences do what in the next step: first come, first served, and decoding never stops. No tensors here.

Each step decodes every running sequence and fills what `budget.py` leaves room for with chunks of prompts.
A sequence that outgrows its row when no other is free takes the one of the youngest running sequence, which waits again
and computes its ids anew later.
"""

from __future__ import annotations

from bisect import insort

from drivetrain.engines.native.kv.prefix import Hit, PrefixIndex, common
from drivetrain.engines.native.kv.rows import CacheRow, KvRows, must
from drivetrain.engines.native.schedule.budget import Room, TokenBudget
from drivetrain.engines.native.schedule.sequence import Job, Sequence, Work

HEADROOM = 64
"""Ids that may follow before a new sequence has to move to a larger row."""


class Scheduler:
    """`schedule` decides, `computed` notes what was done, `end` takes a sequence out at any time between steps.

    `waiting` and `running` are in order of arrival.
    """

    def __init__(
        self,
        rows: KvRows,
        prefixes: PrefixIndex | None,
        *,
        max_batch: int,
        budget: TokenBudget | None = None,
        headroom: int = HEADROOM,
    ) -> None:
        self.rows = rows
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self._prefixes = prefixes
        self._max_batch = max_batch
        self.budget = budget or TokenBudget()
        self._headroom = headroom
        self._no_row: Sequence | None = None
        self._num_left_then = 0
        """The first that found no row, and how often rows had been left by then."""

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    def add(self, job: Job) -> None:
        """Let a request in: its first choice now, the others once the prompt is computed."""
        insort(self.waiting, job.sequences[0], key=_order)

    def schedule(self) -> list[Work]:
        """The next step's work, at least one piece unless `idle`. Takes and moves rows for it."""
        work = self._decodes()
        room = Room(self.budget, [piece.start for piece in work], self._num_prompts())
        self._continue_prompts(work, room)
        self._admit_waiting(work, room)
        return work

    def computed(self, works: list[Work]) -> None:
        """The step was done. Call this before adding sampled ids or ending a sequence: rows may move then."""
        for work in works:
            sequence = work.sequence
            assert sequence.slot is not None
            sequence.computed = sequence.slot.filled = work.start + work.count
        for work in works:
            if work.start < work.sequence.prompt_length <= work.sequence.computed:
                self._prompt_done(work.sequence)

    def end(self, sequence: Sequence, *, poisoned: bool = False) -> None:
        """The sequence is over, for whatever reason; what it computed may serve later prompts."""
        if sequence.ended:
            return
        sequence.ended = True
        if sequence.leads:
            self._spawn(sequence.job)
        if sequence.slot is not None:
            self.running.remove(sequence)
            self._leave(sequence, poisoned=poisoned)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def end_job(self, job: Job, *, poisoned: bool = False) -> None:
        """All its choices."""
        job.spawned = True
        for sequence in job.sequences:
            self.end(sequence, poisoned=poisoned)

    def preempt(self, sequence: Sequence) -> None:
        """Back to waiting. It keeps what was sampled and computes everything again."""
        assert sequence.slot is not None
        self.running.remove(sequence)
        if sequence.slot.alive:
            self._forget(sequence.slot)
            self.rows.drop(sequence.slot)
        sequence.slot, sequence.awaits, sequence.computed = None, None, 0
        insort(self.waiting, sequence, key=_order)
        self.num_preemptions += 1

    def lose_all_rows(self) -> None:
        """After a fault in the tensors: all rows are gone, and what still runs waits again."""
        for sequence in self.running:
            if sequence.slot is not None:
                self._forget(sequence.slot)
        self.rows.reset()
        for sequence in list(self.running):
            self.preempt(sequence)

    def check(self) -> None:
        """The books agree: every hot row belongs to one running sequence. Raises `BooksDisagree` otherwise."""
        self.rows.check()
        slots = {id(sequence.slot) for sequence in self.running if sequence.slot is not None}
        must(len(slots) == len(self.running) == self.rows.num_hot, "a row in use is nobody's or two sequences'")
        must(all(sequence.slot is None for sequence in self.waiting), "who waits has a row")
        must(not any(sequence.ended for sequence in (*self.running, *self.waiting)), "what has ended is still here")
        for queue in (self.running, self.waiting):
            must(queue == sorted(queue, key=_order), "the order of arrival is lost")
        agree = self._prefixes is None or not self.idle or len(self._prefixes) == self.rows.num_cold
        must(agree, "the index of beginnings and the rows that are kept differ")

    def _decodes(self) -> list[Work]:
        ready = [sequence for sequence in self.running if sequence.decodes]
        return [
            _work(sequence, sequence.pending)
            for sequence in ready  # oldest first, so that a preempted one has no work yet
            if sequence.slot is not None and self._fit(sequence, len(sequence.ids))
        ]

    def _num_prompts(self) -> int:
        """How many have a part of their prompt to compute now, or might begin with it."""
        begun = sum(not sequence.decodes and sequence.awaits is None for sequence in self.running)
        if self._is_stuck:
            return begun
        return begun + sum(sequence.leads for sequence in self.waiting[: self._max_batch - len(self.running)])

    @property
    def _is_stuck(self) -> bool:
        """Whether there was no row for the first that waits, and none has been left since. Looking for its beginning
        again in each step would cost all streams time in proportion to the prompt."""
        stuck = bool(self.waiting) and self.waiting[0] is self._no_row
        return stuck and self._num_left_then == self.rows.num_left

    def _continue_prompts(self, work: list[Work], room: Room) -> None:
        """Chunks for sequences that already have a row, oldest first.

        A row holds its sequence's whole prompt from the start, so nobody has to give way for this.
        """
        for sequence in self.running:
            if room and not sequence.decodes and self._may_go_on(sequence):
                self._add_chunk(work, sequence, room)

    def _admit_waiting(self, work: list[Work], room: Room) -> None:
        while room and self.waiting and len(self.running) < self._max_batch and not self._is_stuck:
            if not self._admit(self.waiting[0]):
                self._no_row, self._num_left_then = self.waiting[0], self.rows.num_left
                return
            sequence = self.waiting.pop(0)
            sequence.awaits = self._being_computed(sequence)
            insort(self.running, sequence, key=_order)
            if sequence.awaits is not None:
                continue
            self._add_chunk(work, sequence, room)

    def _add_chunk(self, work: list[Work], sequence: Sequence, room: Room) -> None:
        if count := room.take(sequence.computed, sequence.pending):
            work.append(_work(sequence, count))

    def _admit(self, sequence: Sequence) -> bool:
        """Give it a row that holds its ids and some more, with its beginning copied in if that is known."""
        limit = sequence.prompt_length + sequence.job.limit
        source = self._source(sequence)
        slot = self.rows.take(max(min(len(sequence.ids) + self._headroom, limit), len(sequence.ids)))
        if slot is None:
            return False
        sequence.slot = slot
        if source is not None and source.slot.alive:
            self._begin_with(sequence, source)
        return True

    def _begin_with(self, sequence: Sequence, source: Hit) -> None:
        assert sequence.slot is not None
        self.rows.copy(source.slot, sequence.slot, source.length)
        sequence.computed = source.length
        if not sequence.num_sampled and sequence.leads:
            sequence.cached = source.length

    def _being_computed(self, sequence: Sequence) -> Hit | None:
        """The row of a prompt under way with the longest common beginning, if that saves a block or more.

        Requests that come at once with the same beginning would otherwise each compute it.
        """
        if self._prefixes is None or not sequence.job.may_use_cache:
            return None
        best, least = None, sequence.computed + self._prefixes.block
        for other in self.running:
            under_way = other.computed < other.prompt_length and other.awaits is None
            if under_way and other.slot is not None and other.job.salt == sequence.job.salt:
                length = common(other.ids, sequence.ids, len(sequence.ids) - 1)
                if length >= least:
                    best, least = Hit(other.slot, length), length + 1
        return best

    def _may_go_on(self, sequence: Sequence) -> bool:
        """Whether it no longer waits for its beginning; if that was computed, copy it."""
        source = sequence.awaits
        if source is None:
            return True
        is_there = source.slot.alive and source.slot.filled >= source.length
        if not is_there and source.slot.alive and source.slot.hot:
            return False
        if is_there:
            self._begin_with(sequence, source)
        sequence.awaits = None
        return True

    def _source(self, sequence: Sequence) -> Hit | None:
        """A row that begins as this sequence does, and how much of it: always less than all."""
        leader = sequence.job.sequences[0]
        if not sequence.leads and leader.slot is not None and leader.computed >= sequence.prompt_length > 1:
            return Hit(leader.slot, sequence.prompt_length - 1)
        if self._prefixes is None or not sequence.job.may_use_cache:
            return None
        hit = self._prefixes.find(sequence.ids, len(sequence.ids) - 1, sequence.job.salt)
        if hit is not None:
            self.rows.touch(hit.slot)
        return hit

    def _fit(self, sequence: Sequence, length: int) -> bool:
        """See that the row holds `length` tokens. False: the sequence was the youngest, and waits again itself."""
        assert sequence.slot is not None
        while not self.rows.enlarge(sequence.slot, length):
            youngest = self.running[-1]
            self.preempt(youngest)
            if youngest is sequence:
                return False
        return True

    def _prompt_done(self, sequence: Sequence) -> None:
        if self._prefixes is not None and sequence.slot is not None:
            self._prefixes.add(sequence.slot, sequence.request.prompt_ids, sequence.job.salt)
        if sequence.leads:
            self._spawn(sequence.job)

    def _spawn(self, job: Job) -> None:
        if not job.spawned:
            job.spawned = True
            for sequence in job.sequences[1:]:
                if not sequence.ended:
                    insort(self.waiting, sequence, key=_order)

    def _leave(self, sequence: Sequence, *, poisoned: bool) -> None:
        """Keep the row for later prompts, or free it."""
        slot = sequence.slot
        sequence.slot = None
        if slot is None or not slot.alive:
            return
        self._forget(slot)
        known = sequence.ids[: slot.filled]
        salt = sequence.job.salt
        if poisoned or self._prefixes is None or not self._prefixes.worth_keeping(known, salt):
            self.rows.drop(slot, poisoned=poisoned)
        elif self.rows.keep(slot):
            self._prefixes.add(slot, known, salt)

    def _forget(self, slot: CacheRow) -> None:
        if self._prefixes is not None:
            self._prefixes.forget(slot)


def _order(sequence: Sequence) -> tuple[int, int]:
    return sequence.order


def _work(sequence: Sequence, count: int) -> Work:
    start = sequence.computed
    reaches_end = start + count == len(sequence.ids)
    if sequence.scores_prompt and start < sequence.prompt_length:
        return Work(sequence, start, count, keep=count)
    return Work(sequence, start, count, keep=int(reaches_end))

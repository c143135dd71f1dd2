"""Everything that changes logits before the temperature: biases, penalties and bans, for a whole batch.

Each row with any of them has a `Shape`, which says in ids and numbers what to do at the next position. The
edits of all rows are gathered into flat lists and done together, in the order of the library's own processors.
"""

from __future__ import annotations

from collections.abc import Sequence as Ids
from dataclasses import dataclass, field
from typing import Any

import torch

from drivetrain.core.constraint import Matcher
from drivetrain.core.engine import EngineRequest
from drivetrain.engines.sample.history import History
from drivetrain.engines.sample.row import Row

BANS = (
    "suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "sequence_bias", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
)  # fmt: skip


class Shape:
    """What one choice does to its logits. Make one only for a request for which it is `wanted`."""

    def __init__(self, row: Row) -> None:
        request = row.request
        sampling = request.sampling
        self._sampling = sampling
        self._min_tokens = request.min_tokens
        self._num_given = len(row.ids) - row.num_sampled
        self._history = History(
            row.prompt_ids,
            num_given=self._num_given,
            ngram_size=sampling.no_repeat_ngram_size,
            prompt_ngram_size=sampling.encoder_no_repeat_ngram_size,
        )
        biases = {(i,): b for i, b in sampling.logit_bias.items()} | dict(sampling.sequence_bias)
        self._bias = {ids[0]: bias for ids, bias in biases.items() if len(ids) == 1}
        self._sequence_bias = [(ids, bias) for ids, bias in biases.items() if len(ids) > 1]
        self._stop_ids = sorted(request.stop_ids)
        self.matcher: Matcher | None = request.grammar.matcher() if request.grammar is not None else None
        self._matched = self._num_given
        fallback = "logit_bias" if self.matcher is None else "constraint"
        self.blame = next((name for name in BANS if getattr(sampling, name)), fallback)
        """The field to name when nothing is left to sample."""

    @staticmethod
    def wanted(request: EngineRequest) -> bool:
        s = request.sampling
        return bool(
            s.repetition_penalty != 1.0
            or s.encoder_repetition_penalty != 1.0
            or s.presence_penalty
            or s.frequency_penalty
            or s.no_repeat_ngram_size
            or s.encoder_no_repeat_ngram_size
            or s.exponential_decay_length_penalty is not None
            or s.logit_bias
            or s.sequence_bias
            or s.bad_words_ids
            or s.suppress_tokens
            or s.begin_suppress_tokens
            or (request.min_tokens and request.stop_ids)
            or request.grammar is not None
        )

    def forced(self, ids: Ids[int]) -> list[int]:
        """What can only come next. Where ids are banned it may be that nothing can, which the sampler finds out."""
        if self.matcher is None or any(getattr(self._sampling, name) for name in BANS):
            return []
        self.follow(ids)
        return self.matcher.forced()

    def follow(self, ids: Ids[int]) -> Matcher | None:
        """The matcher, if there is one, with all `ids` taken."""
        if self.matcher is not None and self._matched < len(ids):
            self.matcher.take(ids[self._matched :])
            self._matched = len(ids)
        return self.matcher

    def add_to(self, edits: Edits, row: int, ids: Ids[int]) -> None:
        """`ids` are all that the logits continue, as in `Row`."""
        sampling, history = self._sampling, self._history
        history.read(ids)
        sampled = len(ids) - self._num_given
        edits.bias.add(row, self._bias.keys(), self._bias.values())
        for sequence, bias in self._sequence_bias:
            if history.ends_with(sequence[:-1]):
                edits.bias.add(row, sequence[-1:], [bias])
        if sampling.encoder_repetition_penalty != 1.0:
            edits.prompt_penalty.add_one(row, history.prompt_ids, 1 / sampling.encoder_repetition_penalty)
        if sampling.repetition_penalty != 1.0:
            edits.penalty.add_one(row, history.distinct_ids, sampling.repetition_penalty)
        if sampling.presence_penalty or sampling.frequency_penalty:
            presence, frequency = sampling.presence_penalty, sampling.frequency_penalty
            counts = history.counts
            edits.counts.add(row, counts.keys(), [-(frequency * count) - presence for count in counts.values()])
        edits.bans.add_one(row, self._banned(sampled), 0.0)
        if (decay := sampling.exponential_decay_length_penalty) is not None and sampled > decay[0]:
            edits.decay.add_one(row, self._stop_ids, decay[1] ** (sampled - decay[0]) - 1)

    def _banned(self, sampled: int) -> list[int]:
        sampling = self._sampling
        banned = [*self._history.repeats(), *sampling.suppress_tokens]
        banned += [word[-1] for word in sampling.bad_words_ids if self._history.ends_with(word[:-1])]
        if sampled == 0:
            banned += sampling.begin_suppress_tokens
        if sampled < self._min_tokens:
            banned += self._stop_ids
        return banned


def shape_of(row: Row) -> Shape:
    """The row's own, made when it is first wanted."""
    if row.shape is None:
        row.shape = Shape(row)
    shape: Shape = row.shape
    return shape


@dataclass(slots=True)
class Flat:
    """One number for each of many places in a batch of logits."""

    rows: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, row: int, ids: Any, values: Any) -> None:
        before = len(self.ids)
        self.ids += ids
        self.values += values
        self.rows += [row] * (len(self.ids) - before)

    def add_one(self, row: int, ids: Ids[int], value: float) -> None:
        self.add(row, ids, [value] * len(ids))


@dataclass(slots=True)
class Edits:
    """All edits of one step, kind by kind, in the order in which they are done."""

    bias: Flat = field(default_factory=Flat)
    prompt_penalty: Flat = field(default_factory=Flat)
    penalty: Flat = field(default_factory=Flat)
    counts: Flat = field(default_factory=Flat)
    bans: Flat = field(default_factory=Flat)
    decay: Flat = field(default_factory=Flat)

    def apply(self, logits: Any) -> None:
        """Changes `logits`, `[rows, vocabulary]`, in place. Ids past the vocabulary are passed over."""
        _each(self.bias, logits, torch.add)
        _each(self.prompt_penalty, logits, _penalise)
        _each(self.penalty, logits, _penalise)
        _each(self.counts, logits, torch.add)
        _each(self.bans, logits, lambda at, _: torch.full_like(at, float("-inf")))
        _each(self.decay, logits, _favour)


def _each(flat: Flat, logits: Any, change: Any) -> None:
    if not flat.ids:
        return
    width = logits.shape[1]
    if max(flat.ids) >= width:
        kept = [i for i, token_id in enumerate(flat.ids) if token_id < width]
        flat = Flat([flat.rows[i] for i in kept], [flat.ids[i] for i in kept], [flat.values[i] for i in kept])
    device = logits.device
    place = torch.tensor(flat.rows, device=device), torch.tensor(flat.ids, device=device)
    if change is torch.add:  # one place may occur twice
        logits.index_put_(place, torch.tensor(flat.values, dtype=logits.dtype, device=device), accumulate=True)
    else:
        logits[place] = change(logits[place], torch.tensor(flat.values, dtype=logits.dtype, device=device))


def _penalise(logits: Any, penalty: Any) -> Any:
    return torch.where(logits < 0, logits * penalty, logits / penalty)


def _favour(logits: Any, factor: Any) -> Any:
    return logits + torch.where(torch.isfinite(logits), logits.abs() * factor, 0.0)

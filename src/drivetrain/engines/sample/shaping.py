"""Everything that changes logits before the temperature: biases, penalties and bans, for a whole batch.

Each row with any of them has a `Shape`, which says in ids and numbers what to do at the next position. No tensors
here: the edits of all rows are done together (`edits.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Ids

from drivetrain.core.constraint import Matcher
from drivetrain.core.engine import EngineRequest
from drivetrain.engines.sample.dry import DryPenalty
from drivetrain.engines.sample.edits import Edits, Numbers
from drivetrain.engines.sample.history import History
from drivetrain.engines.sample.row import Row

BANS = (
    "suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "sequence_bias", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
)  # fmt: skip

BANNED = float("-inf")


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
            ngram_size=sampling.no_repeat_ngram_size,
            prompt_ngram_size=sampling.encoder_no_repeat_ngram_size,
        )
        singles = {ids[0]: bias for ids, bias in sampling.sequence_bias if len(ids) == 1}
        self._bias = Numbers({**sampling.logit_bias, **singles})
        self._sequence_bias = dict(sampling.sequence_bias)
        self._biased_words = _by_the_id_before(self._sequence_bias)
        banned = [*sampling.suppress_tokens, *(word[0] for word in sampling.bad_words_ids if len(word) == 1)]
        self._bans = Numbers(dict.fromkeys(banned, BANNED))
        self._bad_words = _by_the_id_before(sampling.bad_words_ids)
        reward = 1 / sampling.encoder_repetition_penalty
        self._prompt_penalty = Numbers(dict.fromkeys(row.prompt_ids, reward) if reward != 1.0 else {})
        self._penalty = Numbers()
        self._counts: dict[int, int] = {}
        """How often each id was sampled."""
        self._counted = Numbers()
        """What is added for that."""
        self._dry = DryPenalty(sampling, request.token_bytes) if sampling.dry_multiplier else None
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
            or s.dry_multiplier
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
        self._read(ids)
        sampled = len(ids) - self._num_given
        edits.bias.add(row, self._bias, self._biased(ids[-1]))
        edits.prompt_penalty.add(row, self._prompt_penalty)
        edits.penalty.add(row, self._penalty)
        edits.counts.add(row, self._counted)
        if self._dry is not None:
            self._dry.read(ids)
            edits.dry.add(row, Numbers(), self._dry.penalties())
        edits.bans.add(row, self._bans, dict.fromkeys(self._banned(sampled, ids[-1]), BANNED))
        decay = self._sampling.exponential_decay_length_penalty
        if decay is not None and sampled > decay[0]:
            factor = decay[1] ** (sampled - decay[0]) - 1
            edits.decay.add(row, Numbers(), dict.fromkeys(self._stop_ids, factor))

    def _read(self, ids: Ids[int]) -> None:
        """Take what is new among `ids` into what is kept."""
        sampling, read = self._sampling, self._history.num_read
        self._history.read(ids)
        if sampling.repetition_penalty != 1.0:
            for token_id in ids[read:]:
                self._penalty[token_id] = sampling.repetition_penalty
        if sampling.presence_penalty or sampling.frequency_penalty:
            for token_id in ids[max(read, self._num_given) :]:
                self._counts[token_id] = count = self._counts.get(token_id, 0) + 1
                self._counted[token_id] = -(sampling.frequency_penalty * count) - sampling.presence_penalty

    def _biased(self, last: int) -> dict[int, float]:
        """The biases of this step that differ from those of every step."""
        biased: dict[int, float] = {}
        for word in self._biased_words.get(last, ()):
            if self._history.ends_with(word[:-1]):
                biased[word[-1]] = biased.get(word[-1], self._bias[word[-1]]) + self._sequence_bias[word]
        return biased

    def _banned(self, sampled: int, last: int) -> list[int]:
        """What is banned in this step and not in every step."""
        banned = self._history.repeats()
        banned += [word[-1] for word in self._bad_words.get(last, ()) if self._history.ends_with(word[:-1])]
        if sampled == 0:
            banned += self._sampling.begin_suppress_tokens
        if sampled < self._min_tokens:
            banned += self._stop_ids
        return banned


def _by_the_id_before(words: Iterable[tuple[int, ...]]) -> dict[int, list[tuple[int, ...]]]:
    """The words of several ids, by the one before the last: a step looks only at those that its newest id allows."""
    found: dict[int, list[tuple[int, ...]]] = {}
    for word in words:
        if len(word) > 1:
            found.setdefault(word[-2], []).append(word)
    return found


def shape_of(row: Row) -> Shape:
    """The row's own, made when it is first wanted."""
    if row.shape is None:
        row.shape = Shape(row)
    shape: Shape = row.shape
    return shape

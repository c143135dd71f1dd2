"""DRY: a token that would continue a repetition loses the more, the longer the repeated sequence is.

The definition is llama.cpp's. Where a sequence that ends earlier is also how the ids end now, the id that came after
it is discouraged. A step costs a few passes over the range, whatever is in it. No tensors here: on arrays this short,
torch would wait for its threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from drivetrain.core.sampling import Sampling

_LOG_LARGEST = math.log(1e30)
"""Of a penalty: finite, so that a repetition that alone may follow still can."""

_LENGTH_BITS = 32

_ROOM = 256
"""For as many ids more the arrays need not grow."""


class DryPenalty:
    """Reads the ids of one sequence in order, once each. `token_bytes` says what each spells."""

    def __init__(self, sampling: Sampling, token_bytes: Callable[[int], bytes]) -> None:
        self._least = sampling.dry_allowed_length
        self._log_first = math.log(sampling.dry_multiplier)
        self._log_base = math.log(sampling.dry_base)
        self._matches = Matches(sampling.dry_range)
        self._breaks = Breaks(sampling.dry_sequence_breakers, token_bytes)
        self._num_read = 0

    def read(self, ids: Sequence[int]) -> None:
        """`ids` are all so far, including those already read."""
        new = ids[self._num_read :]
        self._num_read = len(ids)
        self._matches.read(new)
        self._breaks.read(new)

    def penalties(self) -> dict[int, float]:
        """What is subtracted from the logits of the next position."""
        longest = self._matches.continued(self._least, self._breaks.since)
        taken = {length: self._taken(length) for length in set(longest.values())}
        return {i: taken[length] for i, length in longest.items() if not self._breaks.within(i)}

    def _taken(self, length: int) -> float:
        return math.exp(min(self._log_first + (length - self._least) * self._log_base, _LOG_LARGEST))


class Matches:
    """For each earlier position, how many ids up to there are also the last ids. The newest id decides which of them
    become one longer and which begin anew."""

    def __init__(self, limit: int) -> None:
        """No sequence begins before the last `limit` ids (0: any may)."""
        self._limit = limit
        self._size = 0
        self._ids: Any = np.zeros(0, np.int64)
        self._lengths: Any = np.zeros(1, np.int64)
        """Of the position before each; there is none before the first one."""

    def read(self, new: Sequence[int]) -> None:
        if self._size or len(new) < 2:
            for token_id in new:
                self._append(token_id)
            return
        recent = tuple(new[-self._limit :])
        self._size = len(recent)
        room: Any = np.zeros(_ROOM, np.int64)
        self._ids = np.concatenate([np.array(recent, np.int64), room])
        self._lengths = np.concatenate([_prompt_matches(recent), room])

    def continued(self, least: int, most: int) -> dict[int, int]:
        """By each id that came after a match of `least` ids, the longest such match, counted up to `most`."""
        start, end = self._start, self._size
        if least > most or end - start < 2:
            return {}
        lengths = np.minimum(self._lengths[start + 1 : end], most)
        if start:
            lengths = np.minimum(lengths, np.arange(1, end - start))
        found = np.flatnonzero(lengths >= least)
        if not len(found):
            return {}
        keys = np.sort(self._ids[start + 1 : end][found] << _LENGTH_BITS | lengths[found])
        ids = keys >> _LENGTH_BITS
        last_of_its_id: Any = np.append(ids[1:] != ids[:-1], True)
        lengths = keys[last_of_its_id] & (1 << _LENGTH_BITS) - 1
        return dict(zip(ids[last_of_its_id].tolist(), lengths.tolist(), strict=True))

    @property
    def _start(self) -> int:
        return max(0, self._size - self._limit) if self._limit else 0

    def _append(self, token_id: int) -> None:
        if self._size == len(self._ids):
            more: Any = np.zeros(self._size + _ROOM, np.int64)
            self._ids, self._lengths = np.append(self._ids, more), np.append(self._lengths, more)
        start, end = self._start, self._size
        self._lengths[start + 1 : end + 1] = (self._lengths[start:end] + 1) * (self._ids[start:end] == token_id)
        self._ids[end] = token_id
        self._size += 1


class Breaks:
    """Where the last sequence breaker ended in the text that the ids spell."""

    def __init__(self, texts: Sequence[str], token_bytes: Callable[[int], bytes]) -> None:
        self._breakers = [text.encode() for text in texts]
        self._token_bytes = token_bytes
        self._longest = max(map(len, self._breakers), default=1)
        self._tail = b""
        """The end of the text so far, in which a breaker may have begun."""
        self._within: dict[int, bool] = {}
        self.since = 0
        """How many ids came after it, or at all."""

    def within(self, token_id: int) -> bool:
        """Whether the id spells a whole breaker."""
        found = self._within.get(token_id)
        if found is None:
            spelled = self._token_bytes(token_id)
            found = self._within[token_id] = any(breaker in spelled for breaker in self._breakers)
        return found

    def read(self, new: Sequence[int]) -> None:
        if not self._breakers:
            self.since += len(new)
            return
        pieces = [self._token_bytes(token_id) for token_id in new]
        text = self._tail + b"".join(pieces)
        end = max(text.rfind(breaker) + len(breaker) if breaker in text else 0 for breaker in self._breakers)
        if end > len(self._tail):
            self.since, after = 0, len(text) - end
            while after >= len(pieces[-1 - self.since]):
                after -= len(pieces[-1 - self.since])
                self.since += 1
        else:
            self.since += len(new)
        self._tail = text[len(text) - min(len(text), self._longest - 1) :]


@lru_cache(maxsize=2)
def _prompt_matches(ids: tuple[int, ...]) -> Any:
    """Computed once for all choices of a request: they begin with the same prompt."""
    return np.array([0, *suffix_matches(ids)], np.int64)


def suffix_matches(ids: Sequence[int]) -> list[int]:
    """For each position but the last, how many ids up to there are also the last ones; in linear time (the Z-function,
    from behind)."""
    backwards = ids[::-1]
    size = len(ids)
    lengths = [0] * size
    left = right = 0
    for i in range(1, size):
        length = min(right - i, lengths[i - left]) if i < right else 0
        while i + length < size and backwards[i + length] == backwards[length]:
            length += 1
        lengths[i] = length
        if i + length > right:
            left, right = i, i + length
    return lengths[:0:-1]

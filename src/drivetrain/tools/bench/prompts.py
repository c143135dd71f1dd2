"""Prompts of a given length that no cache has seen: plain words drawn by chance, most of them one token each."""

from __future__ import annotations

import random

_TEXT = (
    "river stone lamp cloud horse copper garden window letter winter bridge table paper silver morning island market "
    "forest kitchen doctor teacher village engine summer mountain bottle ticket shoulder corner station harbor dinner "
    "yellow picture number mother father sister brother evening weather animal country church office street second "
    "minute person reason result school season simple single spring square story strong sugar sweet thought thunder "
    "tower travel trouble uncle useful valley visit voice wagon water wheel white window wonder wooden yesterday young "
    "apple autumn basket butter button camera candle carpet castle chicken circle coffee corn cotton cousin daughter "
    "desert dream driver early earth eight enemy equal famous farmer finger flower friend future glass golden grass"
)
WORDS = _TEXT.split()

PROBE_WORDS = (8, 136)
"""Two lengths, whose counts of tokens tell how many tokens a word and the form around the words have."""


class Prompts:
    """The same seed gives the same prompts; `begin` and `per_word` say how many tokens so many words are."""

    def __init__(self, seed: int, *, begin: float = 0.0, per_word: float = 1.0, shared: int = 0) -> None:
        self._seed = seed
        self._begin = begin
        self._per_word = per_word
        self._shared = self._words("shared", self._num_words(shared)) if shared else []

    @classmethod
    def measured(cls, seed: int, tokens: tuple[int, int], *, shared: int = 0) -> Prompts:
        """From the tokens that prompts of `PROBE_WORDS` words turned out to have."""
        few, many = PROBE_WORDS
        per_word = max((tokens[1] - tokens[0]) / (many - few), 1e-3)
        return cls(seed, begin=tokens[0] - few * per_word, per_word=per_word, shared=shared)

    def make(self, num_tokens: int, *place: object) -> str:
        """The prompt of a place in the run: the round, the request and whatever else sets it apart."""
        num_words = max(1, self._num_words(num_tokens) - len(self._shared))
        return " ".join([*self._shared, *self._words("/".join(map(str, place)), num_words)])

    def probes(self) -> list[str]:
        """The prompts that tell how long prompts are."""
        return [" ".join(self._words("probe", count)) for count in PROBE_WORDS]

    def _num_words(self, num_tokens: int) -> int:
        return max(1, round((num_tokens - self._begin) / self._per_word))

    def _words(self, place: str, count: int) -> list[str]:
        return random.Random(f"words/{self._seed}/{place}").choices(WORDS, k=count)  # noqa: S311 - not for secrets

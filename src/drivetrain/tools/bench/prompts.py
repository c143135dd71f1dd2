"""Prompts of a given length that no cache has seen: plain words drawn at random, most of them one token each."""

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
"""Two lengths in words. Their token counts show how many tokens a word has, and the prompt form around it."""


class PromptMaker:
    """The same seed gives the same prompts. A prompt of `n` words has `begin + n * per_word` tokens."""

    def __init__(self, seed: int, *, begin: float = 0.0, per_word: float = 1.0, shared: int = 0) -> None:
        self._seed = seed
        self._begin = begin
        self._per_word = per_word
        self._shared = self._words("shared", self._num_words(shared)) if shared else []

    @classmethod
    def measured(cls, seed: int, tokens: tuple[int, int], *, shared: int = 0) -> PromptMaker:
        """Calibrated by the token counts of the prompts from `probes`."""
        few, many = PROBE_WORDS
        per_word = max((tokens[1] - tokens[0]) / (many - few), 1e-3)
        return cls(seed, begin=tokens[0] - few * per_word, per_word=per_word, shared=shared)

    def make(self, num_tokens: int, *key: object) -> str:
        """The prompt of one request. The key is its round, its number and whatever else sets it apart."""
        num_words = max(1, self._num_words(num_tokens) - len(self._shared))
        return " ".join([*self._shared, *self._words("/".join(map(str, key)), num_words)])

    def probes(self) -> list[str]:
        """Prompts of `PROBE_WORDS` words, for calibration."""
        return [" ".join(self._words("probe", count)) for count in PROBE_WORDS]

    def _num_words(self, num_tokens: int) -> int:
        return max(1, round((num_tokens - self._begin) / self._per_word))

    def _words(self, key: str, count: int) -> list[str]:
        return random.Random(f"words/{self._seed}/{key}").choices(WORDS, k=count)  # noqa: S311 - not for secrets

"""The ids of one sequence, kept so that bans cost little per new id. No tensors here."""

from __future__ import annotations

from collections.abc import Sequence


class History:
    """Reads the ids in order, once each.

    No n-gram of `ngram_size` may come twice, and none of `prompt_ngram_size` from the prompt may come at all (0: off).
    """

    def __init__(self, prompt: Sequence[int], *, ngram_size: int, prompt_ngram_size: int) -> None:
        self._ids: list[int] = []
        self._size = ngram_size
        self._followers: dict[tuple[int, ...], dict[int, None]] = {}
        self._prompt_size = prompt_ngram_size
        self._prompt_followers = _followers(prompt, prompt_ngram_size)

    def read(self, ids: Sequence[int]) -> None:
        """`ids` are all so far, including those already read."""
        for at in range(len(self._ids), len(ids)):
            self._ids.append(ids[at])
            if self._size and at + 1 >= self._size:
                gram = self._ids[at + 1 - self._size :]
                self._followers.setdefault(tuple(gram[:-1]), {})[gram[-1]] = None

    @property
    def num_read(self) -> int:
        return len(self._ids)

    def repeats(self) -> list[int]:
        """The ids that would complete an earlier n-gram."""
        return [
            *self._following(self._followers, self._size),
            *self._following(self._prompt_followers, self._prompt_size),
        ]

    def ends_with(self, ids: Sequence[int]) -> bool:
        return len(ids) <= len(self._ids) and self._ids[len(self._ids) - len(ids) :] == list(ids)

    def _following(self, followers: dict[tuple[int, ...], dict[int, None]], size: int) -> list[int]:
        if not size or len(self._ids) + 1 < size:
            return []
        return list(followers.get(tuple(self._ids[len(self._ids) - size + 1 :]), ()))


def _followers(ids: Sequence[int], size: int) -> dict[tuple[int, ...], dict[int, None]]:
    made: dict[tuple[int, ...], dict[int, None]] = {}
    for start in range(len(ids) - size + 1 if size else 0):
        made.setdefault(tuple(ids[start : start + size - 1]), {})[ids[start + size - 1]] = None
    return made

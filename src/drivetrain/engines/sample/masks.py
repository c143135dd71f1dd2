"""What grammars allow next, for a whole batch: computed on threads, while the model computes the logits."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache
from typing import Any, Self

import torch

from drivetrain.core.constraint import Matcher
from drivetrain.engines.sample.row import Row
from drivetrain.engines.sample.shaping import shape_of

_MOST_THREADS = 8
_WORD_BITS = 32


class Masks:
    """Begun when it is made, from rows whose ids are complete; `apply` once their logits are there.

    A context: nothing of it runs any more after leaving.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self._begun: dict[int, tuple[Matcher, Any, Future[None]]] = {}
        for row in rows:
            if row.request.grammar is None or (matcher := shape_of(row).follow(row.ids)) is None:
                continue
            words = torch.zeros(-(-row.request.grammar.vocab_size // _WORD_BITS), dtype=torch.int32)
            self._begun[id(row)] = matcher, words, _threads().submit(_write, matcher, words)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        wait([written for _, _, written in self._begun.values()])

    def apply(self, logits: Any, rows: Sequence[Row]) -> dict[int, str]:
        """Forbid what the grammars do, in place. Returns, by row, why a grammar cannot be followed any further."""
        at: list[int] = []
        masks: list[Any] = []
        faults: dict[int, str] = {}
        for i, row in enumerate(rows):
            if id(row) not in self._begun:
                continue
            matcher, words, written = self._begun[id(row)]
            written.result()
            if fault := matcher.fault:
                faults[i] = fault
            at.append(i)
            masks.append(_allowed(row, matcher, words, logits.shape[1]))
        if at:
            allowed = torch.stack(masks).to(logits.device)
            logits[at] = logits[at].masked_fill_(~allowed, float("-inf"))
        return faults


def _allowed(row: Row, matcher: Matcher, words: Any, width: int) -> Any:
    """As one boolean for each column of the logits. An answer ends only where its text is complete."""
    allowed = _bits()[words.view(torch.uint8).long()].flatten()
    allowed = torch.nn.functional.pad(allowed, (0, max(0, width - len(allowed))))[:width]
    assert row.request.grammar is not None
    ends = row.request.grammar.ends
    if ends:
        allowed[[i for i in ends if i < width]] = False
    if matcher.may_end and row.request.stop_ids:
        allowed[[i for i in row.request.stop_ids if i < width]] = True
    return allowed


def _write(matcher: Matcher, words: Any) -> None:
    matcher.write_mask(words.data_ptr(), words.numel() * words.element_size())


@lru_cache(maxsize=1)
def _bits() -> Any:
    """For each byte its bits, the lowest first."""
    return torch.tensor([[bool(byte >> bit & 1) for bit in range(8)] for byte in range(256)])


@lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1), thread_name_prefix="drivetrain-mask")

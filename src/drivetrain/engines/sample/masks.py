"""What grammars allow next, for a whole batch: computed on threads, while the model computes the logits."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache
from typing import Any, Self

import torch

from drivetrain.core.constraint import Matcher
from drivetrain.engines.sample.row import Row
from drivetrain.engines.sample.send import send
from drivetrain.engines.sample.shaping import shape_of
from drivetrain.telemetry.cores import usable_cores

_MOST_THREADS = 8
_WORD_BITS = 32


class Masks:
    """Begun when it is made, from rows whose ids are complete; `apply` once their logits are there.

    All rows are of one model. A context: nothing of it runs any more after leaving, and `spent_s` is complete.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        held = [(row, row.request.grammar) for row in rows if row.request.grammar is not None]
        size = max((grammar.vocab_size for _, grammar in held), default=0)
        self._ends = sorted(held[0][1].ends) if held else []
        self._words = torch.zeros(len(held), -(-size // _WORD_BITS), dtype=torch.int32)
        self._begun: dict[int, tuple[int, Matcher, Future[float]]] = {}
        """By row: its place here, its matcher, and when its mask is written, with the time that this took."""
        self.spent_s = 0.0
        """The processor's time, of all threads."""
        for place, (row, _) in enumerate(held):
            if (matcher := shape_of(row).follow(row.ids)) is not None:
                words = self._words[place]
                written = _threads().submit(_write, matcher, words.data_ptr(), words.numel() * words.element_size())
                self._begun[id(row)] = place, matcher, written

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        written, _ = wait([written for _, _, written in self._begun.values()])
        self.spent_s = sum(one.result() for one in written if one.exception() is None)

    def apply(self, logits: Any, rows: Sequence[Row]) -> dict[int, str]:
        """Forbid what the grammars do, in place. Returns, by row, why a grammar cannot be followed any further."""
        held = [(i, row, self._begun[id(row)]) for i, row in enumerate(rows) if id(row) in self._begun]
        if not held:
            return {}
        for _, _, (_, _, written) in held:
            written.result()
        allowed = self._unpacked([place for _, _, (place, _, _) in held], logits.shape[1])
        for at, (_, row, (_, matcher, _)) in enumerate(held):
            if matcher.may_end:  # an answer ends only where its text is complete
                allowed[at, [i for i in row.request.stop_ids if i < logits.shape[1]]] = True
        forbidden = send(allowed.logical_not_(), logits.device)
        if len(held) == len(rows):
            logits.masked_fill_(forbidden, float("-inf"))
        else:
            at = send(torch.tensor([i for i, _, _ in held]), logits.device)
            logits.index_copy_(0, at, logits.index_select(0, at).masked_fill_(forbidden, float("-inf")))
        return {i: fault for i, _, (_, matcher, _) in held if (fault := matcher.fault)}

    def _unpacked(self, places: list[int], width: int) -> Any:
        """One boolean for each column of the logits, which may be more or fewer than the ids. No ends."""
        words = self._words if places == [*range(len(self._words))] else self._words[places]
        allowed = _bits()[words.view(torch.uint8).long()].flatten(1)
        allowed[:, self._ends] = False
        return torch.nn.functional.pad(allowed, (0, width - allowed.shape[1])).contiguous()


def _write(matcher: Matcher, address: int, size: int) -> float:
    began = time.thread_time()
    matcher.write_mask(address, size)
    return time.thread_time() - began


@lru_cache(maxsize=1)
def _bits() -> Any:
    """For each byte its bits, the lowest first."""
    return torch.tensor([[bool(byte >> bit & 1) for bit in range(8)] for byte in range(256)])


@lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(_MOST_THREADS, usable_cores()), thread_name_prefix="drivetrain-mask")

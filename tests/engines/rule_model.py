"""A model that is a rule on the ids, over the real cache: what a token leaves there stands for all ids up to it.

So each step can say whether what it reads through a table is what its own ids would have written.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from drivetrain.engines.native.kv.blocks import BlockPool  # noqa: E402
from drivetrain.engines.native.kv.cache import KvCache, LayerShape  # noqa: E402 - it needs torch
from drivetrain.engines.native.kv.tables import BlockTable, Copy, Operation  # noqa: E402
from drivetrain.engines.native.schedule.sequence import Job, Work  # noqa: E402

STOP = 6
BAD = 7
"""Not a number for the model, nor is anything after it."""


def following(ids: Sequence[int]) -> int:
    """The model: what comes after these ids."""
    return (sum(ids) + len(ids) // 3) % BAD


def answer(prompt: Sequence[int], limit: int, stop: int | None = STOP) -> list[int]:
    ids = list(prompt)
    while len(ids) - len(prompt) < limit and stop not in ids[len(prompt) :]:
        ids.append(following(ids))
    return ids[len(prompt) :]


class RuleModel:
    """In the place of the runner and of its cache. `fail_*` break the next call.

    For each token the cache holds, as its key, a number that stands for the ids up to it and their salt, and as its
    value the number of the job that computed it, counted from 1.
    """

    def __init__(self, pool: BlockPool, careless: Collection[Job] = ()) -> None:
        """`careless` ended or gave way before it was known what they made: it may be no numbers, and still there."""
        shape = LayerShape(heads=1, kv_heads=1, key_size=1, value_size=1)
        windows = {group.index: group.window for group in pool.groups}  # of a layer each
        self._tensors = KvCache(
            dict.fromkeys(windows, shape),
            pool.sizes,
            windows=windows,
            dtype=torch.float64,
            device=torch.device("cpu"),
            block_tokens=pool.block_tokens,
        )
        self._size = pool.block_tokens
        self._windows = windows
        self._slides = any(windows.values())
        self._keys = {group: keys[0, :, 0] for group, keys in self._tensors.keys.items()}
        self._values = {group: values[0, :, 0] for group, values in self._tensors.values.items()}
        self._codes: dict[tuple[float, Any], float] = {}
        self.num_computed = 0
        self.copies: list[Copy] = []
        self.cursed: set[Job] = set()
        self.wrong: list[AssertionError] = []
        """What was read or written that should not have been."""
        self._careless = careless
        self.fail_apply = False
        self.fail_forward = False

    @property
    def cache(self) -> RuleModel:
        return self

    def apply(self, operations: Sequence[Operation]) -> None:
        if self.fail_apply:
            self.fail_apply = False
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        self.copies += [operation for operation in operations if isinstance(operation, Copy)]
        self._tensors.apply(operations)

    def forward(self, works: Sequence[Work]) -> Any:
        if self.fail_forward:
            self.fail_forward = False
            raise RuntimeError("a wire came loose")
        if any(work.sequence.job in self.cursed for work in works):
            raise ValueError("not this one")
        logits = torch.zeros(sum(work.keep for work in works), BAD + 1)
        at = 0
        for work in works:
            try:
                self._attend(work)
            except AssertionError as exc:  # which to the engine is a fault like any other
                self.wrong.append(exc)
            ids, end = work.sequence.ids, work.start + work.count
            for position in range(end - work.keep, end):
                logits[at, following(ids[: position + 1])] = 5.0
                if BAD in ids[: position + 1]:
                    logits[at] = torch.nan
                at += 1
        return logits

    def pass_through(self, table: BlockTable, value: float) -> None:
        """Something that is no request fills these blocks."""
        for group, row in enumerate(table.rows):
            places = self._places(table, group)[row.num_gone * self._size :]
            self._keys[group][places] = value
            self._values[group][places] = 0

    def _attend(self, work: Work) -> None:
        self.num_computed += work.count
        assert work.table.alive
        own = self._content(work.sequence.job, work.ids[: work.start + work.count])
        for group, window in self._windows.items():
            self._attend_in(group, 0 if window is None else max(0, work.start + 1 - window), work, own)

    def _attend_in(self, group: int, lowest: int, work: Work, own: Any) -> None:
        start, end, size, row = work.start, work.start + work.count, self._size, work.table.rows[group]
        assert len(row.blocks) * size >= end
        assert lowest >= row.num_gone * size, "it reads what it gave back"
        places, keys, values = self._places(work.table, group), self._keys[group], self._values[group]
        held = keys[places]
        assert torch.equal(held[lowest:start].nan_to_num(-1), own[lowest:start].nan_to_num(-1)), "it reads others' ids"
        if not self._slides:  # what was given back is in use before anybody has judged it
            dirty = places[start:][held[start:].isnan()]
            assert {int(number) for number in values[dirty]} <= {job.number + 1 for job in self._careless}
        for block in row.blocks[start // size : -(-end // size)]:
            assert block.num_holders == 1, "it writes what others hold"
        keys[places[start:end]] = own[start:]
        values[places[start:end]] = work.sequence.job.number + 1

    def _content(self, job: Job, ids: Sequence[int]) -> Any:
        code, content = self._code(0.0, job.salt), []
        for token in ids:
            code = math.nan if token == BAD or math.isnan(code) else self._code(code, token)
            content.append(code)
        return torch.tensor(content, dtype=torch.float64)

    def _code(self, before: float, what: Any) -> float:
        return self._codes.setdefault((before, what), float(len(self._codes) + 1))

    def _places(self, table: BlockTable, group: int) -> Any:
        """What was given back is the last place: nobody looks there."""
        numbers = torch.tensor(table.rows[group].numbers)[:, None]
        return (numbers * self._size + torch.arange(self._size)).clamp(min=-1).flatten()

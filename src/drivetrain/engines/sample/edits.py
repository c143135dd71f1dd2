"""Changes to a batch of logits, each of some ids in some rows: gathered row by row, done together kind by kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from drivetrain.engines.sample.send import send

MOST_LATEST = 64
"""Numbers of one row that are sent to the device anew in each step, before all of the row's are sent to stay there."""


class Numbers:
    """One number for each of some ids, for as long as a sequence lives.

    Those set long ago are on the device, so that a step costs what is new. The `latest` are not yet, or as they were.
    """

    def __init__(self, numbers: Mapping[int, float] | None = None) -> None:
        self._all = dict(numbers or {})
        self.latest = dict(numbers or {})
        self._row = 0
        self._places: Any = None
        self.values: Any = None
        """Of those on the device; None if none are."""

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, token_id: int) -> float:
        return self._all.get(token_id, 0.0)

    def __setitem__(self, token_id: int, number: float) -> None:
        if self._all.get(token_id) != number:
            self._all[token_id] = self.latest[token_id] = number

    def settle(self, width: int, device: Any) -> None:
        """Move the latest to the device if they have become many. Ids past the width are left out."""
        if len(self.latest) > MOST_LATEST:
            ids = sorted(i for i in self._all if i < width)  # in order, a step touches less memory
            places = send(torch.tensor(ids, dtype=torch.int64), device)
            values = send(torch.tensor([self._all[i] for i in ids], dtype=torch.float32), device)
            self._row, self._places, self.values, self.latest = 0, places, values, {}

    def places(self, row: int, width: int) -> Any:
        """Where its ids are in the flat logits. A sequence mostly stays in its row."""
        if row != self._row:
            self._row, self._places = row, self._places + (row - self._row) * width
        return self._places


@dataclass(slots=True)
class Edit:
    """One kind of change, made from a logit and the number of its id."""

    change: Callable[[Any, Any], Any]
    _rows: list[tuple[int, Numbers, Mapping[int, float]]] = field(default_factory=list)

    def add(self, row: int, numbers: Numbers, now: Mapping[int, float] | None = None) -> None:
        """`now` holds in this step only. Of an id that is in both, it holds instead of `numbers`."""
        if numbers or now:
            self._rows.append((row, numbers, now or {}))

    def apply(self, logits: Any) -> None:
        width, flat = logits.shape[1], logits.view(-1)
        rows: list[int] = []
        ids: list[int] = []
        values: list[float] = []
        settled = []
        for row, numbers, now in self._rows:
            numbers.settle(width, logits.device)
            latest = {**numbers.latest, **now}
            rows += [row] * len(latest)
            ids += latest
            values += latest.values()
            if numbers.values is not None:
                settled.append((numbers.places(row, width), numbers.values))
        if ids:
            columns = torch.tensor(ids)
            within = columns < width
            at = send((torch.tensor(rows) * width + columns)[within], logits.device)
            latest_values = send(torch.tensor(values, dtype=torch.float32)[within], logits.device)
            changed = self.change(flat.index_select(0, at), latest_values)
        if settled:
            places, settled_values = (torch.cat(parts) for parts in zip(*settled, strict=True))
            if self.change is torch.add:  # the same in half the time
                flat.scatter_add_(0, places, settled_values)
            else:
                flat.scatter_(0, places, self.change(flat.index_select(0, places), settled_values))
        if ids:  # they may be settled too, with older numbers
            flat.scatter_(0, at, changed)


@dataclass(slots=True)
class Edits:
    """All edits of one step, in the order in which they are done: that of the library's own processors, where it has
    them, and of llama.cpp's samplers."""

    bias: Edit = field(default_factory=lambda: Edit(torch.add))
    prompt_penalty: Edit = field(default_factory=lambda: Edit(_penalise))
    penalty: Edit = field(default_factory=lambda: Edit(_penalise))
    counts: Edit = field(default_factory=lambda: Edit(torch.add))
    dry: Edit = field(default_factory=lambda: Edit(torch.sub))
    bans: Edit = field(default_factory=lambda: Edit(lambda logits, number: number))
    decay: Edit = field(default_factory=lambda: Edit(_favour))

    def apply(self, logits: Any) -> None:
        """Changes `logits`, `[rows, vocabulary]`, in place. Ids past the vocabulary are passed over."""
        for edit in (self.bias, self.prompt_penalty, self.penalty, self.counts, self.dry, self.bans, self.decay):
            edit.apply(logits)


def _penalise(logits: Any, penalty: Any) -> Any:
    return torch.where(logits < 0, logits * penalty, logits / penalty)


def _favour(logits: Any, factor: Any) -> Any:
    return logits + torch.where(torch.isfinite(logits), logits.abs() * factor, 0.0)

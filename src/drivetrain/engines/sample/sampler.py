"""The next id of every sequence in a batch: raw logits in, ids and logprobs out, each row by its own request.

The order of work is that of `core/sampling.py`. A row that cannot be sampled gets an error of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from drivetrain.core.engine import IdLogprobs
from drivetrain.core.errors import DrivetrainError, EngineFailed, InvalidRequest
from drivetrain.engines.sample.cutoffs import CANDIDATES, TOO_FEW, can_draw_on, draw, draw_cut, is_cut
from drivetrain.engines.sample.edits import Edits
from drivetrain.engines.sample.masks import Masks
from drivetrain.engines.sample.rng import EXCLUSION, unit
from drivetrain.engines.sample.row import Row
from drivetrain.engines.sample.send import send
from drivetrain.engines.sample.shaping import Shape, shape_of

_NO_NUMBERS, _NONE_LEFT = -1, -2
"""In place of an id."""

_UNLIMITED = 2.0
"""In place of a threshold, where XTC excludes nothing."""


@dataclass(frozen=True, slots=True)
class Sampled:
    token_id: int
    logprobs: IdLogprobs | None = None


@dataclass(frozen=True, slots=True)
class Unsampled:
    """`poisoned`: the logits were not numbers, and what the sequence left in the cache may not be either."""

    error: DrivetrainError
    poisoned: bool = False


Outcome = Sampled | Unsampled


def sample(logits: Any, rows: Sequence[Row], masks: Masks | None = None) -> list[Outcome]:
    """One outcome per row of `logits`, `[rows, vocabulary]`, which may be changed in place.

    `masks` are those of these rows, if they were begun earlier.
    """
    with torch.inference_mode():
        logits = logits.float().contiguous()
        if not can_draw_on(logits.device):
            logits = logits.cpu()
        return _sample(logits, rows, masks or Masks(rows))


def _sample(logits: Any, rows: Sequence[Row], masks: Masks) -> list[Outcome]:
    with_logprobs = [i for i, row in enumerate(rows) if row.request.logprobs is not None]
    raw = torch.log_softmax(_some(logits, with_logprobs), dim=-1) if with_logprobs else None
    chosen, faults = _choose(logits, rows, masks)
    ids = chosen.tolist()  # here the host waits for the device, and nowhere before
    if again := [i for i, token_id in enumerate(ids) if token_id == TOO_FEW]:
        _draw_cut(logits, rows, again, logits.shape[1], chosen)
        ids = chosen.tolist()
    outcomes: list[Outcome] = []
    for i, (row, token_id) in enumerate(zip(rows, ids, strict=True)):
        error = _unusable(row, token_id, faults.get(i, ""))
        outcomes.append(Sampled(token_id) if error is None else error)
    if raw is not None:
        counts = [rows[i].request.logprobs or 0 for i in with_logprobs]
        usable = torch.tensor([max(ids[i], 0) for i in with_logprobs])
        for i, logprobs in zip(with_logprobs, describe(raw, send(usable, raw.device), counts), strict=True):
            if isinstance(sampled := outcomes[i], Sampled):
                outcomes[i] = Sampled(sampled.token_id, logprobs)
    return outcomes


def _choose(logits: Any, rows: Sequence[Row], masks: Masks) -> tuple[Any, dict[int, str]]:
    """An id for each row, or what became of it, on the device; and, by row, the faults of the grammars.

    Changes `logits` to those that were drawn from.
    """
    if edits := _edits(rows):
        edits.apply(logits)
    faults = masks.apply(logits, rows)
    best, chosen = logits.max(dim=-1)  # the lowest of equals, as argmax has it
    _draw(logits, rows, chosen)
    chosen.masked_fill_(best == -torch.inf, _NONE_LEFT)
    chosen.masked_fill_(~(best < torch.inf), _NO_NUMBERS)
    return chosen, faults


def logprobs_of(logits: Any, ids: Sequence[int], count: int) -> list[IdLogprobs]:
    """The logprobs of `ids`, one per row of raw `logits`: for ids not sampled from them, such as a prompt's."""
    with torch.inference_mode():
        wanted = send(torch.tensor(ids), logits.device)
        return describe(torch.log_softmax(logits.float(), dim=-1), wanted, [count] * len(ids))


def describe(logprobs: Any, ids: Any, counts: Sequence[int]) -> list[IdLogprobs]:
    """The logprob of each row's id, and as many of the likeliest ids as the row asks for."""
    own = logprobs.gather(1, ids[:, None])[:, 0].tolist()
    most = min(max(counts, default=0), logprobs.shape[1])
    if not most:
        return [IdLogprobs(value) for value in own]
    values, indices = (found.tolist() for found in logprobs.topk(most, dim=-1))
    return [
        IdLogprobs(value, tuple(zip(row_ids[:count], row_values[:count], strict=True)))
        for value, row_ids, row_values, count in zip(own, indices, values, counts, strict=True)
    ]


def _edits(rows: Sequence[Row]) -> Edits | None:
    edits = None
    for i, row in enumerate(rows):
        if Shape.wanted(row.request):
            edits = edits or Edits()
            shape_of(row).add_to(edits, i, row.ids)
    return edits


def _draw(logits: Any, rows: Sequence[Row], chosen: Any) -> None:
    """Put the ids of the rows that are not greedy into `chosen`. Divides `logits` by the temperatures."""
    temperatures = [1.0 if row.request.sampling.greedy else row.request.sampling.temperature for row in rows]
    if any(temperature != 1.0 for temperature in temperatures):
        logits.div_(send(torch.tensor(temperatures, dtype=logits.dtype), logits.device)[:, None])
    drawn = [i for i, row in enumerate(rows) if not row.request.sampling.greedy]
    if plain := [i for i in drawn if not is_cut(rows[i].request.sampling)]:
        thresholds = _thresholds(rows, plain, logits)
        _put(chosen, plain, draw(_some(logits, plain), _units(rows, plain, logits.device), thresholds))
    if cut := [i for i in drawn if is_cut(rows[i].request.sampling)]:
        _draw_cut(logits, rows, cut, CANDIDATES, chosen)


def _draw_cut(logits: Any, rows: Sequence[Row], some: list[int], count: int, chosen: Any) -> None:
    samplings = [rows[i].request.sampling for i in some]
    units, thresholds = _units(rows, some, logits.device), _thresholds(rows, some, logits)
    _put(chosen, some, draw_cut(_some(logits, some), units, samplings, count, thresholds))


def _some(logits: Any, some: list[int]) -> Any:
    if len(some) == logits.shape[0]:
        return logits
    return logits.index_select(0, send(torch.tensor(some), logits.device))


def _put(chosen: Any, some: list[int], ids: Any) -> None:
    chosen.index_copy_(0, send(torch.tensor(some), chosen.device), ids)


def _units(rows: Sequence[Row], some: list[int], device: Any) -> Any:
    drawn = [unit(rows[i].seed, rows[i].num_sampled) for i in some]
    return send(torch.tensor(drawn, dtype=torch.float64), device)


def _thresholds(rows: Sequence[Row], some: list[int], logits: Any) -> Any:
    """XTC's, as a column; None if it excludes nothing in any of these rows."""
    if not any(rows[i].request.sampling.xtc_probability for i in some):
        return None
    thresholds = [rows[i].request.sampling.xtc_threshold if _excludes(rows[i]) else _UNLIMITED for i in some]
    return send(torch.tensor(thresholds, dtype=logits.dtype), logits.device)[:, None]


def _excludes(row: Row) -> bool:
    probability = row.request.sampling.xtc_probability
    return probability > 0 and unit(row.seed, row.num_sampled, EXCLUSION) < probability


def _unusable(row: Row, token_id: int, fault: str) -> Unsampled | None:
    """`fault` is what became of its grammar."""
    if fault:
        return Unsampled(InvalidRequest(f"the constraint cannot be followed any further: {fault}", param="constraint"))
    if token_id == _NO_NUMBERS:
        return Unsampled(
            EngineFailed(
                "the model produced logits that are not numbers (NaN or infinite);"
                " its weights are damaged or its dtype is too small"
            ),
            poisoned=True,
        )
    if token_id == _NONE_LEFT:
        blame = row.shape.blame if row.shape is not None else None
        return Unsampled(InvalidRequest("the bans of this request leave no token to sample", param=blame))
    return None

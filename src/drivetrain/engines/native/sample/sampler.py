"""The next id of every sequence in a batch: raw logits in, ids and logprobs out, each row by its own request.

The order of work is that of `core/sampling.py`. A row that cannot be sampled gets an error of its own.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import Any

import torch

from drivetrain.core.engine import IdLogprobs
from drivetrain.core.errors import DrivetrainError, EngineFailed, InvalidRequest
from drivetrain.engines.native.sample.cutoffs import draw, draw_cut, is_cut
from drivetrain.engines.native.sample.rng import unit
from drivetrain.engines.native.sample.shaping import Edits, Shape
from drivetrain.engines.native.schedule.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Sampled:
    token_id: int
    logprobs: IdLogprobs | None = None


@dataclass(frozen=True, slots=True)
class Unsampled:
    """`poisoned`: the logits were no numbers, and so may be what the sequence left in the cache."""

    error: DrivetrainError
    poisoned: bool = False


Outcome = Sampled | Unsampled


def sample(logits: Any, sequences: Rows[Sequence]) -> list[Outcome]:
    """One outcome a row of `logits`, `[rows, vocabulary]`, which may be changed in place."""
    with torch.inference_mode():
        return _sample(logits.float(), sequences)


def _sample(logits: Any, sequences: Rows[Sequence]) -> list[Outcome]:
    asked = [i for i, s in enumerate(sequences) if s.request.logprobs is not None]
    raw = torch.log_softmax(logits[asked], dim=-1) if asked else None
    if shaped := _edits(sequences):
        shaped.apply(logits)
    best, chosen = logits.max(dim=-1)  # the lowest of equals, as argmax has it
    _draw(logits, sequences, chosen)
    outcomes: list[Outcome] = []
    for sequence, top, token_id in zip(sequences, best.tolist(), chosen.tolist(), strict=True):
        error = _unusable(sequence, top)
        outcomes.append(Sampled(token_id) if error is None else error)
    if raw is not None:
        counts = [sequences[i].request.logprobs or 0 for i in asked]
        for i, told in zip(asked, describe(raw, chosen[asked], counts), strict=True):
            if isinstance(sampled := outcomes[i], Sampled):
                outcomes[i] = Sampled(sampled.token_id, told)
    return outcomes


def logprobs_of(logits: Any, ids: Rows[int], count: int) -> list[IdLogprobs]:
    """What the raw `logits` say of `ids`, one a row: for the positions of a prompt."""
    with torch.inference_mode():
        wanted = torch.tensor(ids, device=logits.device)
        return describe(torch.log_softmax(logits.float(), dim=-1), wanted, [count] * len(ids))


def describe(logprobs: Any, ids: Any, counts: Rows[int]) -> list[IdLogprobs]:
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


def _edits(sequences: Rows[Sequence]) -> Edits | None:
    edits = None
    for row, sequence in enumerate(sequences):
        if Shape.wanted(sequence.request):
            edits = edits or Edits()
            if sequence.shape is None:
                sequence.shape = Shape(sequence.request)
            sequence.shape.add_to(edits, row, sequence.ids)
    return edits


def _draw(logits: Any, sequences: Rows[Sequence], chosen: Any) -> None:
    """Put the ids of the rows that are not greedy into `chosen`."""
    plain: list[int] = []
    cut: list[int] = []
    for row, sequence in enumerate(sequences):
        sampling = sequence.request.sampling
        if not sampling.greedy:
            (cut if is_cut(sampling) else plain).append(row)
    if plain:
        chosen[plain] = draw(_tempered(logits, sequences, plain), _units(sequences, plain, logits.device))
    if cut:
        samplings = [sequences[row].request.sampling for row in cut]
        units = _units(sequences, cut, logits.device)
        chosen[cut] = draw_cut(_tempered(logits, sequences, cut), units, samplings)


def _tempered(logits: Any, sequences: Rows[Sequence], rows: list[int]) -> Any:
    """These rows, divided by their temperatures; in place where they are all there are."""
    temperatures = [sequences[row].request.sampling.temperature for row in rows]
    some = logits if len(rows) == len(sequences) else logits[rows]
    if any(temperature != 1.0 for temperature in temperatures):
        some.div_(torch.tensor(temperatures, dtype=logits.dtype, device=logits.device)[:, None])
    return some


def _units(sequences: Rows[Sequence], rows: list[int], device: Any) -> Any:
    drawn = [unit(sequences[row].seed, sequences[row].num_sampled) for row in rows]
    return torch.tensor(drawn, dtype=torch.float64, device=device)


def _unusable(sequence: Sequence, top: float) -> Unsampled | None:
    if top != top or top == float("inf"):
        return Unsampled(
            EngineFailed(
                "the model produced logits that are no numbers; its weights are damaged or its dtype too small"
            ),
            poisoned=True,
        )
    if top == float("-inf"):
        blame = sequence.shape.blame if sequence.shape is not None else None
        return Unsampled(InvalidRequest("the bans of this request leave no token to sample", param=blame))
    return None

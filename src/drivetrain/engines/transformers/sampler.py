"""The shared sampler inside `generate()`: each choice is a row of it.

`generate()` has one global random generator and takes logprobs after its processors. So everything that shapes
the distribution happens in here, as one logits processor that returns the choice already made.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import torch

from drivetrain.core.engine import EngineRequest
from drivetrain.engines.sample.masks import Masks
from drivetrain.engines.sample.sampler import Sampled, Unsampled, logprobs_of, sample


@dataclass(slots=True)
class ChoiceRow:
    """One choice of the request, as the sampler sees it. The first `num_given` of the `ids` were not sampled."""

    request: EngineRequest
    seed: int
    prompt_ids: tuple[int, ...]
    ids: list[int]
    num_given: int
    shape: Any = None

    @property
    def num_sampled(self) -> int:
        return len(self.ids) - self.num_given


class RowSampler:
    """Called by `generate()` with all ids so far and the raw logits of the next position, both one row per choice.

    `ended` holds the choices that need no more ids; it may grow at any time.
    """

    def __init__(
        self, request: EngineRequest, model: Any, structure: Any, prompt_ids: tuple[int, ...], ended: Container[int]
    ) -> None:
        self._request = request
        self._structure = structure
        self._prompt_ids = prompt_ids
        self._ended = ended
        self._guidance = _guidance(request, model)
        self._rows: list[ChoiceRow] = []
        self.sampled: dict[int, Sampled] = {}
        """What the last call sampled, by choice."""
        self.mask_s = 0.0
        """The processor's time that its masks took."""

    def __call__(self, input_ids: Any, logits: Any) -> Any:
        if not self._rows:
            self._rows = self._first_rows(input_ids.tolist())
        live = [index for index in range(len(self._rows)) if index not in self._ended]
        self.mask_s = 0.0
        chosen = self._choose(live, input_ids, logits) if live else []
        self.sampled = dict(zip(live, chosen, strict=True))
        ids = [0] * len(self._rows)  # a choice that has ended goes on with any id, which nobody reads
        for index, sampled in self.sampled.items():
            ids[index] = sampled.token_id
            self._rows[index].ids.append(sampled.token_id)
        only = torch.full_like(logits, -torch.inf)
        return only.scatter_(1, torch.tensor(ids, device=logits.device)[:, None], 0.0)

    def _first_rows(self, given: list[list[int]]) -> list[ChoiceRow]:
        """`given` is the prompt, or the decoder's start where an encoder has the prompt."""
        return [
            ChoiceRow(self._request, seed, self._prompt_ids, ids, len(ids))
            for seed, ids in zip(self._request.seeds, given, strict=True)
        ]

    def _choose(self, live: list[int], input_ids: Any, logits: Any) -> list[Sampled]:
        """One id for each choice in `live`, the ones that still go on."""
        rows = [self._rows[index] for index in live]
        raw = self._select(live, logits)
        guided = None if self._guidance is None else self._select(live, self._guidance(input_ids, logits))
        if (forced := self._forced(rows[0])) is not None:
            return self._with_logprobs([forced] * len(rows), raw)
        if guided is not None:
            return self._with_logprobs([sampled.token_id for sampled in self._sample(guided, rows)], raw)
        return self._sample(raw, rows)

    def _sample(self, logits: Any, rows: list[ChoiceRow]) -> list[Sampled]:
        """One row that cannot be sampled ends the request."""
        with Masks(rows) as masks:
            outcomes = sample(logits, rows, masks)
        self.mask_s = masks.spent_s
        chosen: list[Sampled] = []
        for outcome in outcomes:
            if isinstance(outcome, Unsampled):
                raise outcome.error
            chosen.append(outcome)
        return chosen

    def _select(self, live: list[int], logits: Any) -> Any:
        return logits if len(live) == len(self._rows) else logits[live]

    def _with_logprobs(self, ids: list[int], raw: Any) -> list[Sampled]:
        """For ids that were not sampled from the raw logits."""
        if self._request.logprobs is None:
            return [Sampled(token_id) for token_id in ids]
        return list(map(Sampled, ids, logprobs_of(raw, ids, self._request.logprobs)))

    def _forced(self, row: ChoiceRow) -> int | None:
        """The id that generation_config forces at this position (BART and its kin), whatever the request says.

        Of several end tokens the lowest, as in greedy search. No end is forced before `min_tokens`, and nothing at all
        where a grammar decides.
        """
        request, forced = self._request, None
        if request.grammar is not None:
            return None
        if row.num_sampled + 1 == request.max_tokens:
            forced = _lowest(self._structure.forced_eos_token_id)
        if forced is None and len(row.ids) == 1:
            forced = self._structure.forced_bos_token_id
        too_early = row.num_sampled < request.min_tokens and forced in request.stop_ids
        return None if too_early else forced


def _lowest(ids: int | list[int] | None) -> int | None:
    return min(ids) if isinstance(ids, list) else ids


def _guidance(request: EngineRequest, model: Any) -> Any:
    """The library's own processor, since it runs the model a second time; None if the request needs none."""
    if request.sampling.guidance_scale == 1.0:
        return None
    from transformers.generation import UnbatchedClassifierFreeGuidanceLogitsProcessor

    return UnbatchedClassifierFreeGuidanceLogitsProcessor(request.sampling.guidance_scale, model)

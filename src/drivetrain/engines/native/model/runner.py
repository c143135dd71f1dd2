"""One forward pass over the packed row of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from drivetrain.engines.native.attention.backend import AttentionBackend, MakeAttention
from drivetrain.engines.native.attention.batch import Span, pack
from drivetrain.engines.native.attention.layers import AttentionStage
from drivetrain.engines.native.kv.cache import KvCache

Forward = Callable[[Any, Any, Any], Any]
"""From ids and positions, `[1, T]`, and the indices whose logits are wanted, `[kept]`, to `[kept, vocabulary]`."""


@dataclass(frozen=True, slots=True)
class Pass:
    """What computes: the class by itself, or programs that were compiled of it, and what attends in it."""

    forward: Forward
    attention: MakeAttention


def plain_pass(model: Any) -> Forward:
    """By the model's own class."""

    def forward(input_ids: Any, position_ids: Any, keep: Any) -> Any:
        # Without a mask, the library would search the positions for packed sequences. Nobody reads this one.
        mask = torch.ones(1, 1, dtype=torch.bool, device=input_ids.device).expand(input_ids.shape)
        out = model(
            input_ids=input_ids,
            position_ids=position_ids,
            attention_mask=mask,
            use_cache=False,
            logits_to_keep=keep,
        )
        return out.logits[0]

    return forward


class Runner:
    """Owns the model, its cache and what attends over it. Runs under inference mode; one pass at a time."""

    def __init__(
        self, model: Any, stage: AttentionStage, cache: KvCache, attention: AttentionBackend, forward: Forward
    ) -> None:
        self.model = model
        self.cache = cache
        self._stage = stage
        self.attention = attention
        self.compute = forward

    def forward(self, works: Sequence[Span]) -> Any:
        """The logits of the positions that the works keep, `[kept, vocabulary]`.

        Keys and values of the new ids are in the cache afterwards.
        """
        with torch.inference_mode():
            batch = pack(works, self.model.device)
            with self._stage.over(self.attention, batch.pieces):
                return self.compute(batch.input_ids, batch.position_ids, batch.keep)

    def hidden_states(self, spans: Sequence[Span]) -> Any:
        """Of all ids of the spans, `[ids, size]`. To be called under inference mode."""
        model, batch = getattr(self.model, "base_model", self.model), pack(spans, self.model.device)
        with self._stage.over(self.attention, batch.pieces):
            out = model(
                input_ids=batch.input_ids,
                position_ids=batch.position_ids,
                attention_mask=torch.ones_like(batch.input_ids, dtype=torch.bool),
                use_cache=False,
            )
        return out.last_hidden_state[0]

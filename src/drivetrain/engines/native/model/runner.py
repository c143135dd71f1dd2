"""One forward pass over the packed row of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from drivetrain.engines.native.attention.batch import pack
from drivetrain.engines.native.attention.layers import AttentionStage
from drivetrain.engines.native.kv.cache import KvCache
from drivetrain.engines.native.schedule.sequence import Work

Forward = Callable[[Any, Any, Any], Any]
"""From ids and positions, `[1, T]`, and the indices whose logits are wanted, `[kept]`, to `[kept, vocabulary]`."""


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
    """Owns the model, its stage and its cache. Runs under inference mode; one pass at a time."""

    def __init__(self, model: Any, stage: AttentionStage, cache: KvCache, forward: Forward) -> None:
        self.model = model
        self.cache = cache
        self._stage = stage
        self.compute = forward

    def forward(self, works: Sequence[Work]) -> tuple[list[Work], Any]:
        """The works in the order of the packed row, and the logits of the positions they keep: `[kept, vocabulary]`.

        Keys and values of the new ids are in the cache afterwards.
        """
        with torch.inference_mode():
            batch = self._stage.batch = pack(
                works, self.cache, self.model.device, only_chunks=self._stage.kernel is not None
            )
            try:
                return batch.works, self.compute(batch.input_ids, batch.position_ids, batch.keep)
            finally:
                self._stage.batch = None

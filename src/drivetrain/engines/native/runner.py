"""One forward pass over the packed row of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from drivetrain.engines.native.attention import Stage
from drivetrain.engines.native.batch import PackedBatch, pack
from drivetrain.engines.native.cache import KvCache
from drivetrain.engines.native.sequence import Work


class Runner:
    """Owns the model, its stage and its cache. Runs under inference mode; one pass at a time."""

    def __init__(self, model: Any, stage: Stage, cache: KvCache) -> None:
        self.model = model
        self.cache = cache
        self._stage = stage
        self._ones = torch.ones(1, 1, dtype=torch.bool, device=model.device)

    def forward(self, works: Sequence[Work]) -> tuple[list[Work], Any]:
        """The works in the order of the packed row, and the logits of the positions they keep: `[kept, vocabulary]`.

        Keys and values of the new ids are in the cache afterwards.
        """
        batch = pack(works, self.cache, self.model.device)
        self._stage.batch = batch
        try:
            with torch.inference_mode():
                return batch.works, self._logits(batch)
        finally:
            self._stage.batch = None

    def _logits(self, batch: PackedBatch) -> Any:
        total = batch.input_ids.shape[1]
        if self._ones.shape[1] < total:
            self._ones = torch.ones(1, total, dtype=torch.bool, device=self.model.device)
        out = self.model(
            input_ids=batch.input_ids,
            position_ids=batch.position_ids,
            # Without one, the library would look for packed sequences in the positions.
            attention_mask=self._ones[:, :total],
            use_cache=False,
            logits_to_keep=batch.keep,
        )
        return out.logits[0]

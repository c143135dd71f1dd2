"""Vectors from hidden states, and scores from a head: one text at a time, so that no padding can touch a result."""

from __future__ import annotations

import torch

from drivetrain.core.engine import Pair
from drivetrain.engines.checkpoint.pooling import Pooled
from drivetrain.engines.transformers.loading import TransformersModel


def embed(loaded: TransformersModel, ids: tuple[int, ...]) -> tuple[float, ...]:
    """Pooled, in float32, of unit length."""
    model = getattr(loaded.model, "base_model", loaded.model)
    row = torch.tensor([ids], device=loaded.model.device)
    pooled = Pooled(loaded.pooling)
    with torch.no_grad():
        pooled.add(model(input_ids=row, attention_mask=torch.ones_like(row)).last_hidden_state[0])
    return pooled.vector()


def score(loaded: TransformersModel, pair: Pair) -> float:
    """The head's one logit."""
    row = torch.tensor([pair.token_ids], device=loaded.model.device)
    types = {} if pair.type_ids is None else {"token_type_ids": torch.tensor([pair.type_ids], device=row.device)}
    with torch.no_grad():
        return float(loaded.model(input_ids=row, attention_mask=torch.ones_like(row), **types).logits[0, 0])

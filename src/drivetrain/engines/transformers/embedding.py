"""Embeddings from hidden states."""

from __future__ import annotations

import torch

from drivetrain.engines.checkpoint.pooling import Pooled
from drivetrain.engines.transformers.loading import TransformersModel


def embed(loaded: TransformersModel, ids: tuple[int, ...]) -> tuple[float, ...]:
    """One text at a time, so that no padding can touch the result; pooled, in float32, of unit length."""
    model = getattr(loaded.model, "base_model", loaded.model)
    row = torch.tensor([ids], device=loaded.model.device)
    pooled = Pooled(loaded.pooling)
    with torch.no_grad():
        pooled.add(model(input_ids=row, attention_mask=torch.ones_like(row)).last_hidden_state[0])
    return pooled.vector()

"""Embeddings out of hidden states."""

from __future__ import annotations

from typing import Any

import torch

from drivetrain.core.errors import EngineFailed
from drivetrain.engines.transformers.loading import Loaded


def embed(loaded: Loaded, ids: tuple[int, ...]) -> tuple[float, ...]:
    """One text at a time, so that no padding can touch the result; pooled, in float32, of unit length."""
    model = getattr(loaded.model, "base_model", loaded.model)
    row = torch.tensor([ids], device=loaded.model.device)
    with torch.no_grad():
        hidden = model(input_ids=row, attention_mask=torch.ones_like(row)).last_hidden_state[0].float()
    pooled = pool(hidden, loaded.pooling)
    norm = pooled.norm()
    if not torch.isfinite(norm) or norm == 0:
        raise EngineFailed("the model gave no usable embedding for this text")
    return tuple((pooled / norm).tolist())


def pool(hidden: Any, how: str) -> Any:
    """`how` is one of `loading.POOLINGS`."""
    if how == "mean":
        return hidden.mean(dim=0)
    if how == "cls":
        return hidden[0]
    return hidden[-1]

"""How the hidden states of a text become one vector."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from drivetrain.core.errors import EngineFailed
from drivetrain.engines.base.settings import Pooling


class Pooled:
    """Takes the hidden states of one text, piece by piece."""

    def __init__(self, how: Pooling) -> None:
        self._how = how
        self._count = 0
        self._value: Any = None

    def add(self, hidden: Any) -> None:
        """The states of the next positions, `[count, size]`; pooled in float32."""
        hidden = hidden.float()
        if self._how is Pooling.MEAN:
            total = hidden.sum(dim=0)
            self._value = total if self._count == 0 else self._value + total
        elif self._how is Pooling.LAST:
            self._value = hidden[-1].clone()
        elif self._count == 0:
            self._value = hidden[0].clone()
        self._count += len(hidden)

    def vector(self) -> tuple[float, ...]:
        """Of unit length. Raises `EngineFailed` if the model made nothing usable of the text."""
        value = self._value / self._count if self._how is Pooling.MEAN else self._value
        norm = float(value.norm())
        if not math.isfinite(norm) or norm == 0:
            raise EngineFailed("the model gave no usable embedding for this text")
        return tuple((value / norm).tolist())


def stated_pooling(path: Path) -> Pooling:
    """The pooling that a sentence-transformers folder declares, else the mean."""
    try:
        stated = json.loads((path / "1_Pooling" / "config.json").read_text())
    except (OSError, ValueError):
        return Pooling.MEAN
    names = {
        "pooling_mode_cls_token": Pooling.CLS,
        "pooling_mode_mean_tokens": Pooling.MEAN,
        "pooling_mode_lasttoken": Pooling.LAST,
    }
    return next((pooling for key, pooling in names.items() if stated.get(key)), Pooling.MEAN)


def embedding_size(config: Any) -> int:
    """The length of a vector; 0 if the configuration does not say."""
    return int(getattr(config.get_text_config(), "hidden_size", 0) or 0)

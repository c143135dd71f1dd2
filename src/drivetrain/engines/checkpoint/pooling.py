"""How the hidden states of a text become one vector."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from drivetrain.core.errors import EngineFailed, InvalidSetting

POOLINGS = ("mean", "cls", "last")


class Pooled:
    """Takes the hidden states of one text, piece by piece. `how` is one of `POOLINGS`."""

    def __init__(self, how: str) -> None:
        self._how = how
        self._count = 0
        self._value: Any = None

    def add(self, hidden: Any) -> None:
        """The states of the next positions, `[count, size]`; pooled in float32."""
        hidden = hidden.float()
        if self._how == "mean":
            total = hidden.sum(dim=0)
            self._value = total if self._count == 0 else self._value + total
        elif self._how == "last":
            self._value = hidden[-1].clone()
        elif self._count == 0:
            self._value = hidden[0].clone()
        self._count += len(hidden)

    def vector(self) -> tuple[float, ...]:
        """Of unit length. Raises `EngineFailed` if the model made nothing usable of the text."""
        value = self._value / self._count if self._how == "mean" else self._value
        norm = float(value.norm())
        if not math.isfinite(norm) or norm == 0:
            raise EngineFailed("the model gave no usable embedding for this text")
        return tuple((value / norm).tolist())


def pooling_of(setting: Any, path: Path) -> str:
    """How hidden states become one vector: the setting, else what the folder says, else the mean."""
    if setting is not None and setting not in POOLINGS:
        raise InvalidSetting(f"pooling is {setting!r}; it must be {', '.join(POOLINGS)}", param="pooling")
    return setting or _stored_pooling(path) or "mean"


def embedding_size(config: Any) -> int:
    """The length of a vector; 0 if the configuration does not say."""
    return int(getattr(config.get_text_config(), "hidden_size", 0) or 0)


def _stored_pooling(path: Path) -> str | None:
    """The pooling that a sentence-transformers folder declares."""
    try:
        config = json.loads((path / "1_Pooling" / "config.json").read_text())
    except (OSError, ValueError):
        return None
    names = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean", "pooling_mode_lasttoken": "last"}
    return next((name for key, name in names.items() if config.get(key)), None)

"""Which backend serves a model: the one place that knows them all."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from drivetrain.engines.native.attention import cpu
from drivetrain.engines.native.attention.backend import Layer, MakeAttention
from drivetrain.engines.native.attention.reference import ReferenceAttention


def attention_for(layers: Mapping[int, Layer], device: Any, dtype: Any, kernel: Path | None = None) -> MakeAttention:
    """The best one that can serve these layers. `kernel` is the library of our own attention, where it was built."""
    if kernel is not None and not cpu.unfit(layers, device, dtype):
        return partial(cpu.CpuAttention, kernel)
    if device.type == "cuda":
        from drivetrain.engines.native.attention import flex  # it imports torch's compiler

        if not (flex.obstacle() or flex.unfit(layers, device, dtype)):
            return flex.FlexAttention
    return ReferenceAttention

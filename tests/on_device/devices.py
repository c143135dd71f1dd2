"""A device with captured steps and torch's `flex_attention`, or the CPU in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

from drivetrain.core.engine import ModelSpec, WeightsFormat  # noqa: E402 - these need torch
from drivetrain.engines.checkpoint.quiet import quiet_library  # noqa: E402
from drivetrain.engines.native import assembling  # noqa: E402
from drivetrain.engines.native.attention.backend import MakeAttention  # noqa: E402
from drivetrain.engines.native.attention.flex import FlexAttention  # noqa: E402
from drivetrain.engines.native.model.graphs import Capture, Compute  # noqa: E402
from on_device.eager_flex import eager_flex  # noqa: E402
from tiny import causal  # noqa: E402

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("Llama", {}),
    "windows": ("Mistral", {"sliding_window": 16}),
    "soft caps": ("Gemma2", causal.GEMMA),
    "sinks": ("GptOss", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16}),
}
"""Heads of 16, the smallest that `flex_attention` serves. Experts, as in the last one, cannot be captured on CUDA."""


@dataclass(frozen=True)
class Device:
    name: str
    attention: MakeAttention

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """While an engine is loaded that is asked for `name`."""
        yield


class StandIn(Device):
    """The CPU, in eager mode; what is captured is computed again."""

    @contextmanager
    def in_use(self) -> Iterator[None]:
        with (
            mock.patch.object(assembling, "attention_for", return_value=self.attention),
            mock.patch.object(assembling, "cuda_capture", return_value=recompute),
        ):
            yield


def recompute(compute: Compute) -> tuple[Callable[[], None], Any]:
    """As a `Capture`: the result is always in the same tensor."""
    result = compute()
    return lambda: result.copy_(compute()), result


CAPTURE: Capture = recompute
CPU = StandIn("cpu", partial(FlexAttention, flex=eager_flex))
CUDA = Device("cuda", FlexAttention)


@cache
def folder(root: Path, model: str) -> Path:
    family, extra = MODELS[model]
    made = root / family
    made.mkdir()
    with quiet_library():
        causal.build(made, family, causal._byte_level, **{**causal.GROUPED, "head_dim": 16, **extra})
    return made


def assembled(device: Device, path: Path, **options: Any) -> assembling.Assembled:
    given = {"device": device.name, "kv_cache_gb": 0.002, "compile": "off", **options}
    spec = ModelSpec(name="tiny", path=path, format=WeightsFormat.SAFETENSORS, options=given)
    with device.in_use():
        return assembling.assemble(spec, lambda *_: None)

"""Our attention inside the library's model classes: it keeps keys and values in our cache and reads them from there.

The library calls `attention` once per layer with the packed row of the whole batch. The step's backend reaches it
through the `AttentionStage` that `install` puts on every attention module; there is no global state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from drivetrain.engines.native.attention import operators
from drivetrain.engines.native.attention.backend import AttentionBackend, AttentionSpec, Layer, Piece
from drivetrain.engines.native.kv.cache import LayerShape

NAME = "drivetrain"
"""The library's name for this attention."""

_STAGE = "_drivetrain_stage"


class UnfitModel(Exception):
    """The class needs something of its attention that ours does not do. The message says what."""


@dataclass(frozen=True, slots=True)
class LayerMask:
    """Takes the place of a layer's mask: everything before, or a window of it."""

    window: int | None


class AttentionStage:
    """What the model's attention works with. Without a backend it only notes the layers, for the probe."""

    def __init__(self) -> None:
        self.layers: dict[int, Layer] = {}
        self.model: Any = None
        """What traces call the model; see `operators.py`."""
        self._backend: AttentionBackend | None = None

    @contextmanager
    def over(self, backend: AttentionBackend, pieces: Sequence[Piece]) -> Iterator[None]:
        """For one pass."""
        backend.prepare(pieces)
        with self.using(backend):
            yield

    @contextmanager
    def using(self, backend: AttentionBackend) -> Iterator[None]:
        """For one pass that was prepared."""
        self._backend = backend
        try:
            yield
        finally:
            self._backend = None

    def attend(self, layer: int, query: Any, key: Any, value: Any, spec: AttentionSpec | None = None) -> Any:
        """The attention of one layer over the whole batch."""
        if self._backend is not None:
            return self._backend.attend(layer, query, key, value)
        assert spec is not None
        self.layers[layer] = Layer(LayerShape(query.shape[1], key.shape[1], key.shape[3], value.shape[3]), spec)
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3])


def register() -> None:
    """Register with the library. Idempotent."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, layer_mask)


def install(model: Any) -> AttentionStage:
    """Give the model's stage to every module that may attend."""
    stage = AttentionStage()
    for module in model.modules():
        if hasattr(module, "layer_idx"):
            setattr(module, _STAGE, stage)
    return stage


def layer_mask(
    *, mask_function: Any = None, local_size: int | None = None, use_vmap: bool = False, **_: Any
) -> LayerMask:
    """In place of the library's mask: only the layer's window, and no tensor. Called once per forward pass."""
    if use_vmap or "chunked" in getattr(mask_function, "__qualname__", ""):
        raise UnfitModel("its attention mask is neither causal nor a sliding window")
    return LayerMask(local_size)


def attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Any = None,
    **other: Any,
) -> tuple[Any, None]:
    """`query` is `[1, heads, T, size]`, `key` and `value` `[1, kv_heads, T, size]`; returns `[1, T, heads, size]`."""
    stage = getattr(module, _STAGE, None)
    if not isinstance(attention_mask, LayerMask) or stage is None:
        raise UnfitModel("it does not leave its attention mask to the library")
    if other.get("position_bias") is not None or other.get("is_causal") is False:
        raise UnfitModel("its attention has a position bias or is not causal")
    spec = AttentionSpec(
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=attention_mask.window,
        softcap=softcap,
        sinks=s_aux,
    )
    layer: int = module.layer_idx
    if operators.traced(query):
        return operators.attend(query, key, value, stage.model, layer), None
    return stage.attend(layer, query, key, value, spec), None

"""Our attention inside the library's model classes: it keeps keys and values in our cache and reads them from there.

The library calls `attention` once per layer with the packed row of the whole batch. The step's batch reaches it through
the `AttentionStage` that `install` puts on every attention module; there is no global state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from drivetrain.engines.native.attention import operators
from drivetrain.engines.native.attention.batch import Chunk, Decodes, PackedBatch
from drivetrain.engines.native.attention.kernel import Kernel, can_attend
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


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """How one layer attends."""

    scale: float
    window: int | None
    softcap: float | None
    sinks: Any

    @property
    def plain(self) -> bool:
        """Whether scores go through a softmax and nothing else."""
        return self.softcap is None and self.sinks is None


class AttentionStage:
    """What the model's attention works on. Without a batch it only notes the layers, for the probe."""

    def __init__(self) -> None:
        self.batch: PackedBatch | None = None
        self.shapes: dict[int, LayerShape] = {}
        self.specs: dict[int, AttentionSpec] = {}
        self.kernel: Kernel | None = None
        self.model: Any = None
        """What traces call the model; see `operators.py`."""

    def attend(self, layer: int, query: Any, key: Any, value: Any) -> Any:
        """The attention of one layer over the whole batch, in a compiled pass."""
        return _over_batch(self, layer, query, key, value, self.specs[layer])

    @property
    def fits_kernel(self) -> bool:
        """Whether our own library can serve every layer. With it, batches have only chunks."""
        return can_attend(self.shapes.values()) and all(spec.plain for spec in self.specs.values())


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
    if stage.batch is None:
        stage.shapes[layer] = LayerShape(query.shape[1], key.shape[1], key.shape[3], value.shape[3])
        stage.specs[layer] = spec
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None
    return _over_batch(stage, layer, query, key, value, spec), None


def _over_batch(stage: AttentionStage, layer: int, query: Any, key: Any, value: Any, spec: AttentionSpec) -> Any:
    batch = stage.batch
    assert batch is not None
    if stage.kernel is not None:
        return stage.kernel.attend(batch, layer, query, key, value, scale=spec.scale, window=spec.window)
    out = query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])
    for group in batch.decodes:
        _decode(group, layer, query, key, value, spec, out)
    for chunk in batch.chunks:
        _extend(chunk, layer, query, key, value, spec, out)
    return out


def _decode(group: Decodes, layer: int, query: Any, key: Any, value: Any, spec: AttentionSpec, out: Any) -> None:
    """One new id of each sequence against its row, all rows of the segment at once."""
    keys, values = group.segment.keys[layer], group.segment.values[layer]
    span = slice(group.start, group.end)
    keys[group.rows, :, group.positions] = key[0, :, span].transpose(0, 1)
    values[group.rows, :, group.positions] = value[0, :, span].transpose(0, 1)
    kv_heads = keys.shape[1]
    queries = query[0, :, span].transpose(0, 1).unflatten(1, (kv_heads, -1))  # heads of one kv head are its queries
    if not group.dense:
        queries = queries.new_zeros(group.num_rows, *queries.shape[1:]).index_copy_(0, group.rows, queries)
    found = attend(
        queries,
        keys[: group.num_rows, :, : group.length],
        values[: group.num_rows, :, : group.length],
        group.mask(spec.window, query.dtype),
        spec,
    )
    if not group.dense:
        found = found[group.rows]
    out[0, span] = found.flatten(1, 2)


def _extend(chunk: Chunk, layer: int, query: Any, key: Any, value: Any, spec: AttentionSpec, out: Any) -> None:
    """A piece of a prompt against all that came before it in its row."""
    keys, values = chunk.segment.keys[layer][chunk.row], chunk.segment.values[layer][chunk.row]
    span = slice(chunk.start, chunk.end)
    keys[:, chunk.first : chunk.length] = key[0, :, span]
    values[:, chunk.first : chunk.length] = value[0, :, span]
    groups = query.shape[1] // keys.shape[0]
    visible = slice(chunk.begin(spec.window), chunk.length)
    found = attend_chunk(
        query[:, :, span],
        keys[None, :, visible],
        values[None, :, visible],
        chunk.mask(spec.window, groups, query.dtype, query.device),
        spec,
    )
    out[0, span] = found[0].transpose(0, 1)


def attend(query: Any, key: Any, value: Any, mask: Any, spec: AttentionSpec) -> Any:
    """`query` is `[rows, kv_heads, queries, size]`: the heads that share a kv head are its queries, at one position."""
    if not spec.plain:
        sinks = None if spec.sinks is None else spec.sinks.reshape(1, key.shape[1], -1, 1)
        return _explicit(query, key, value, mask, spec, sinks)
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=spec.scale)


def attend_chunk(query: Any, key: Any, value: Any, mask: Any, spec: AttentionSpec) -> Any:
    """`query` is `[1, heads, count, size]`; no mask means causal from the first position on.

    Heads of one kv head become further queries of it: its keys and values are read once for all of them.
    """
    kv_heads, count = key.shape[1], query.shape[2]
    groups = query.shape[1] // kv_heads
    if mask is None and spec.plain:
        return functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=spec.scale, enable_gqa=groups > 1
        )
    shared = query.unflatten(1, (kv_heads, groups)).flatten(2, 3)
    if spec.plain:
        found = functional.scaled_dot_product_attention(shared, key, value, attn_mask=mask, scale=spec.scale)
    else:
        if mask is None:
            mask = torch.full((count, count), float("-inf"), dtype=query.dtype, device=query.device).triu_(1)
            mask = mask.repeat(groups, 1)
        sinks = spec.sinks
        if sinks is not None:
            sinks = sinks.repeat_interleave(count).reshape(1, kv_heads, -1, 1)
        found = _explicit(shared, key, value, mask, spec, sinks)
    return found.unflatten(2, (groups, count)).flatten(1, 2)


def _explicit(query: Any, key: Any, value: Any, mask: Any, spec: AttentionSpec, sinks: Any) -> Any:
    """The same with plain matrix products, for classes with a soft cap or sinks."""
    scores = torch.matmul(query, key.transpose(-1, -2)) * spec.scale
    if spec.softcap is not None:
        scores = torch.tanh(scores / spec.softcap) * spec.softcap
    if mask is not None:
        scores = scores + mask
    if sinks is not None:
        column = sinks.to(scores.dtype).expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, column], dim=-1)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32)
    if sinks is not None:
        weights = weights[..., :-1]
    return torch.matmul(weights.to(value.dtype), value)

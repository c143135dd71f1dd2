"""Attention with torch's `flex_attention`, on CUDA: keys and values are read where they are, block by block.

Each call is a batch of rows over the one cache: a row is the id of a decode, or up to `TILE` ids of a chunk. A row has
a list of blocks, and the compiled kernel reads no others. Which keys of these an id sees is a matter of positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch.nn.attention import flex_attention as library

from drivetrain.engines.native.attention.backend import AttentionSpec, Layer, Piece
from drivetrain.engines.native.attention.flex_rows import FlexGroup, Rows
from drivetrain.engines.native.kv.cache import KvCache

SMALLEST, LARGEST = 16, 256
"""Of the sizes of keys and values: the kernel's products take no smaller ones, and its memory holds no larger ones."""

DTYPES = (torch.float32, torch.float16, torch.bfloat16)

OLDEST = (2, 9)
"""Of torch: from here on, its kernels take blocks of 16."""

Flex = Callable[..., Any]
"""As torch's `flex_attention`."""


def obstacle() -> str:
    """Why it cannot be used with this torch; empty if it can."""
    from torch.utils._triton import has_triton

    if torch.__version__ < OLDEST:
        return f"it needs torch {OLDEST[0]}.{OLDEST[1]}, and this is {torch.__version__}"
    return "" if has_triton() else "it needs Triton"


def unfit(layers: Mapping[int, Layer], device: Any, dtype: Any) -> str:
    """Why it cannot serve these layers; empty if it can."""
    if device.type != "cuda" or dtype not in DTYPES:
        return "it is for float32, float16 and bfloat16 on CUDA"
    sizes = [size for layer in layers.values() for size in (layer.shape.key_size, layer.shape.value_size)]
    fits = all(SMALLEST <= size <= LARGEST for size in sizes)
    return "" if fits else f"it is for heads of {SMALLEST} to {LARGEST}"


def compiled(*, dynamic: bool | None) -> Flex:
    """Without the compiler, each id would be multiplied with the whole cache, so this fails where it cannot compile."""
    config = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, 64)  # one for each kind of layer and number of decodes
    made: Flex = torch.compile(library.flex_attention, fullgraph=True, dynamic=dynamic)
    return made


class FlexAttention:
    """As `CapturableAttention` in `backend.py`."""

    reads_in_place: ClassVar[bool] = True

    def __init__(self, layers: Mapping[int, Layer], cache: KvCache, flex: Flex | None = None) -> None:
        self._layers = layers
        self._cache = cache
        self._flex = flex or compiled(dynamic=None)
        self._flex_fixed = flex or compiled(dynamic=False)
        self._caps = {spec.softcap: _capped(spec.softcap) for spec in (layer.spec for layer in layers.values())}
        self._groups = [FlexGroup(cache, number) for number in range(len(cache.windows))]

    def prepare(self, pieces: Sequence[Piece]) -> None:
        for group in self._groups:
            group.prepare(pieces)

    def reserve(self, num_rows: int, length: int, spares: Sequence[int]) -> None:
        for group, spare in zip(self._groups, spares, strict=True):
            group.reserve(num_rows, length, spare)

    def prepare_fixed(self, pieces: Sequence[Piece]) -> None:
        for group in self._groups:
            group.prepare_fixed(pieces)

    def attend(self, layer: int, query: Any, key: Any, value: Any) -> Any:
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        step = self._groups[self._cache.group_of[layer]].step
        # A masked value is multiplied by zero, so there must be no NaN of others behind the last id in its block.
        values.unflatten(1, (-1, self._cache.block_tokens)).index_fill_(1, step.begun, 0)
        keys.index_copy_(1, step.written, key[0])
        values.index_copy_(1, step.written, value[0])
        spec, keys, values = self._layers[layer].spec, keys[None], values[None]
        out = query.new_zeros(query.shape[2] + 1, query.shape[1], value.shape[3])  # the last one is nobody's
        for rows in step.rows:
            found = self._found(rows.taken(query[0]), keys, values, spec, rows).transpose(1, 2)
            if rows.ids is None:
                return found.transpose(0, 1)
            out[rows.ids.flatten()] = found.flatten(0, 1)
        return out[None, :-1]

    def _found(self, query: Any, keys: Any, values: Any, spec: AttentionSpec, rows: Rows) -> Any:
        """`query` is `[rows, heads, ids, size]`, as what is found."""
        with_sums = {} if spec.sinks is None else {"return_aux": library.AuxRequest(lse=True)}
        found = (self._flex_fixed if rows.ids is None else self._flex)(
            query,
            keys,
            values,
            score_mod=self._caps[spec.softcap],
            block_mask=rows.mask,
            scale=spec.scale,
            enable_gqa=True,
            kernel_options=rows.options(query.shape[1] // keys.shape[1], self._cache.block_tokens),
            **with_sums,
        )
        if spec.sinks is None:
            return found
        found, sums = found
        return found * torch.sigmoid(sums.lse - spec.sinks.float()[:, None])[..., None].to(found.dtype)


def _capped(softcap: float | None) -> Callable[..., Any] | None:
    def capped(score: Any, row: Any, head: Any, i: Any, place: Any) -> Any:
        return torch.tanh(score / softcap) * softcap

    return None if softcap is None else capped

"""The attention of a step in one call per layer, by our own small C++ library (`attention.cpp`)."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import c_double, c_int64, c_void_p
from pathlib import Path
from typing import Any, ClassVar

import torch

from drivetrain.engines.native.attention.backend import Layer, Piece
from drivetrain.engines.native.kv.blocks import BLOCK_TOKENS
from drivetrain.engines.native.kv.cache import KvCache

SOURCE = Path(__file__).with_name("attention.cpp")
LARGEST = 256
MULTIPLE = 8
"""The sizes of keys and values that the source is for: multiples of this up to `LARGEST`."""


class _Piece(ctypes.Structure):
    _fields_ = [("start", c_int64), ("count", c_int64), ("first", c_int64), ("blocks", c_void_p)]


class _Tensor(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("by_head", c_int64), ("by_id", c_int64)]


class _Step(ctypes.Structure):
    _fields_ = [
        ("num_pieces", c_int64),
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("key_size", c_int64),
        ("value_size", c_int64),
        ("window", c_int64),
        ("num_threads", c_int64),
        ("places", c_int64),
        ("scale", c_double),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("query", _Tensor),
        ("key", _Tensor),
        ("value", _Tensor),
        ("out", c_void_p),
        ("pieces", c_void_p),
    ]


def unfit(layers: Mapping[int, Layer], device: Any, dtype: Any) -> str:
    """Why it cannot serve these layers; empty if it can."""
    if device.type != "cpu" or dtype is not torch.float32:
        return "it is for float32 on a CPU"
    sizes = [size for layer in layers.values() for size in (layer.shape.key_size, layer.shape.value_size)]
    if any(size > LARGEST or size % MULTIPLE for size in sizes):
        return f"it is for heads of multiples of {MULTIPLE} up to {LARGEST}"
    plain = all(layer.spec.plain for layer in layers.values())
    return "" if plain else "it does no soft cap and no sinks"


class CpuAttention:
    """As in `backend.py`."""

    reads_in_place: ClassVar[bool] = True

    def __init__(self, library: Path, layers: Mapping[int, Layer], cache: KvCache) -> None:
        if cache.block_tokens != BLOCK_TOKENS:
            raise ValueError(f"this attention is for blocks of {BLOCK_TOKENS} tokens")
        self._layers = layers
        self._cache = cache
        self._attend = ctypes.CDLL(str(library)).drivetrain_attend
        self._attend.argtypes, self._attend.restype = [c_void_p], ctypes.c_int
        self._pieces: list[Any] = []
        """For each group of layers."""

    def prepare(self, pieces: Sequence[Piece]) -> None:
        """The tables are read where they are, so they must stay as they are until the step is done."""
        self._pieces = [
            (_Piece * len(pieces))(
                *[_Piece(p.start, p.count, p.first, p.table.rows[group].numbers.buffer_info()[0]) for p in pieces]
            )
            for group in range(len(self._cache.windows))
        ]

    def attend(self, layer: int, query: Any, key: Any, value: Any) -> Any:
        if {query.dtype, key.dtype, value.dtype} != {torch.float32}:
            raise TypeError("this attention is for float32 only")
        spec, pieces = self._layers[layer].spec, self._pieces[self._cache.group_of[layer]]
        out = query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])
        query, key, value = (_dense(x[0]) for x in (query, key, value))
        step = _Step(
            num_pieces=len(pieces),
            heads=query.shape[0],
            kv_heads=key.shape[0],
            key_size=key.shape[2],
            value_size=value.shape[2],
            window=spec.window or 0,
            num_threads=torch.get_num_threads(),
            places=self._cache.keys[layer].shape[1],
            scale=spec.scale,
            keys=self._cache.keys[layer].data_ptr(),
            values=self._cache.values[layer].data_ptr(),
            query=_tensor(query),
            key=_tensor(key),
            value=_tensor(value),
            out=out.data_ptr(),
            pieces=ctypes.addressof(pieces),
        )
        if self._attend(ctypes.byref(step)):
            raise MemoryError("there is no memory for the attention of a step")
        return out


def _dense(x: Any) -> Any:
    return x if x.stride(2) == 1 else x.contiguous()


def _tensor(x: Any) -> _Tensor:
    return _Tensor(x.data_ptr(), x.stride(0), x.stride(1))

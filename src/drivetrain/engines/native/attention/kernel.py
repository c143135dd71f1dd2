"""The attention of a step in one call per layer, by our own small C++ library (`attention.cpp`).

Built where steps are compiled, since there is a compiler then. It does what `layers.py` does with torch's operations,
in float32 on a CPU, for layers without soft cap or sinks.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from ctypes import c_double, c_int64, c_void_p
from pathlib import Path
from typing import Any

import torch

from drivetrain.engines.native.attention.batch import Chunk, PackedBatch
from drivetrain.engines.native.kv.cache import LayerShape, RowSegment

SOURCE = Path(__file__).with_name("attention.cpp")
LARGEST = 256
MULTIPLE = 8
"""The sizes of keys and values that the source is for: multiples of this up to `LARGEST`."""


class _Piece(ctypes.Structure):
    _fields_ = [(name, c_int64) for name in ("start", "count", "first", "segment", "row")]


class _Segment(ctypes.Structure):
    _fields_ = [("keys", c_void_p), ("values", c_void_p), ("capacity", c_int64)]


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
        ("scale", c_double),
        ("query", _Tensor),
        ("key", _Tensor),
        ("value", _Tensor),
        ("out", c_void_p),
        ("pieces", c_void_p),
        ("segments", c_void_p),
    ]


def can_attend(shapes: Iterable[LayerShape]) -> bool:
    sizes = [size for shape in shapes for size in (shape.key_size, shape.value_size)]
    return all(size <= LARGEST and size % MULTIPLE == 0 for size in sizes)


def build() -> Path:
    """The library, in the cache of torch's compiler. Raises what that raises."""
    from torch._inductor.codecache import CppCodeCache

    return Path(CppCodeCache.load(SOURCE.read_text("utf-8"), extra_flags=("-ffp-contract=fast",))._name)


class Kernel:
    def __init__(self, library: Path) -> None:
        self._attend = ctypes.CDLL(str(library)).drivetrain_attend
        self._attend.argtypes, self._attend.restype = [c_void_p], ctypes.c_int

    def attend(
        self, batch: PackedBatch, layer: int, query: Any, key: Any, value: Any, *, scale: float, window: int | None
    ) -> Any:
        """As `layers.attention`, over a batch of chunks only; keys and values are in the cache afterwards."""
        if {query.dtype, key.dtype, value.dtype} != {torch.float32}:
            raise TypeError("this attention is for float32 only")
        if batch.kernel_pieces is None:
            batch.kernel_pieces = _pieces(batch.chunks)
        pieces, held = batch.kernel_pieces
        segments = (_Segment * len(held))(
            *[_Segment(s.keys[layer].data_ptr(), s.values[layer].data_ptr(), s.capacity) for s in held]
        )
        out = query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])
        query, key, value = (_dense(x[0]) for x in (query, key, value))
        step = _Step(
            num_pieces=len(pieces),
            heads=query.shape[0],
            kv_heads=key.shape[0],
            key_size=key.shape[2],
            value_size=value.shape[2],
            window=window or 0,
            num_threads=torch.get_num_threads(),
            scale=scale,
            query=_tensor(query),
            key=_tensor(key),
            value=_tensor(value),
            out=out.data_ptr(),
            pieces=ctypes.addressof(pieces),
            segments=ctypes.addressof(segments),
        )
        if self._attend(ctypes.byref(step)):
            raise MemoryError("there is no memory for the attention of a step")
        return out


def _pieces(chunks: Sequence[Chunk]) -> tuple[Any, list[RowSegment]]:
    """The pieces of a batch, the same for all layers, and the segments that they refer to by number."""
    segments = list(dict.fromkeys(chunk.segment for chunk in chunks))
    number = {segment: n for n, segment in enumerate(segments)}
    pieces = [_Piece(c.start, c.count, c.first, number[c.segment], c.row) for c in chunks]
    return (_Piece * len(pieces))(*pieces), segments


def _dense(x: Any) -> Any:
    return x if x.stride(2) == 1 else x.contiguous()


def _tensor(x: Any) -> _Tensor:
    return _Tensor(x.data_ptr(), x.stride(0), x.stride(1))

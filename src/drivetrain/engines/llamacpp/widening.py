"""A copy of a GGUF file with its weights in F16, made once, for a model that the catalogue says answers better so.

llama.cpp's kernels for quantized weights round what they are multiplied with to 8 bits as well, which tips a small
model's answers over. With F16 the rest is computed as it is. The values of the weights stay what they were.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from drivetrain import gguf
from drivetrain.core.engine import ModelSpec, Progress
from drivetrain.core.errors import LoadFailed, MissingExtra

F16: Final = "F16"
FILE: Final = "weights.gguf"

_KIND_F16: Final = 1
_FILE_TYPE_F16: Final = 1
_SLICE_BYTES = 4 * 1024 * 1024
_MB = 1e6

Decode = Callable[[Any], Any]
"""From rows of blocks, as bytes, to rows of the weights in them."""


def weights_to_run(spec: ModelSpec, progress: Progress) -> Path:
    """The file that llama.cpp is to load, made now if it is not there yet. Raises `LoadFailed` or `MissingExtra`."""
    if spec.form is None:
        return spec.path
    if spec.form != F16 or spec.derived is None:
        raise LoadFailed(f"the llamacpp engine cannot make {spec.form} of these weights")
    folder = spec.derived.make(_kind(spec.form), lambda target: widen(spec.path, target / FILE, progress), progress)
    return folder / FILE


def weights_made(spec: ModelSpec) -> Path:
    """The same file if it is there already, else the one that it would be made of."""
    folder = spec.derived.find(_kind(spec.form)) if spec.form is not None and spec.derived is not None else None
    return spec.path if folder is None else folder / FILE


def _kind(form: str) -> str:
    return f"gguf-{form.lower()}"


def widen(source: Path, target: Path, progress: Progress) -> None:
    """Write `target`: the same metadata, and each quantized tensor in F16."""
    try:
        with source.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            _widen(data, target, progress)
    except (ValueError, struct.error) as exc:
        raise LoadFailed(f"the weights cannot be written in F16: {exc}; pull the model again") from exc


def _widen(data: mmap.mmap, target: Path, progress: Progress) -> None:
    header = gguf.Header(data)
    alignment = gguf.alignment(header.metadata(lambda key: False))
    front = bytearray(data[: header.at])
    if "general.file_type" in header.places:
        struct.pack_into("<I", front, header.places["general.file_type"], _FILE_TYPE_F16)
    tensors = list(header.tensors())
    start = gguf.aligned(header.at, alignment)
    if start > len(data):
        raise gguf.CutShort
    with target.open("wb") as file:
        file.write(front)
        offset = 0
        for tensor in tensors:
            file.write(_described(tensor, offset))
            offset = gguf.aligned(offset + _widened_bytes(tensor), alignment)
        total = gguf.aligned(file.tell(), alignment) + offset
        for tensor in tensors:
            _pad(file, alignment)
            for piece in _pieces(data, tensor, start + tensor.offset):
                file.write(piece)
                done = file.tell()
                progress(f"preparing the weights, once ({done / _MB:.1f} MB of {total / _MB:.1f} MB)", done / total)
        _pad(file, alignment)


def _described(tensor: gguf.Tensor, offset: int) -> bytes:
    kind = _KIND_F16 if tensor.kind in _DECODED else tensor.kind
    dimensions = len(tensor.shape)
    return struct.pack(
        f"<Q{len(tensor.name)}sI{dimensions}QIQ",
        len(tensor.name), tensor.name, dimensions, *tensor.shape, kind, offset,
    )  # fmt: skip


def _widened_bytes(tensor: gguf.Tensor) -> int:
    return tensor.num_weights * (2 if tensor.kind in _DECODED else _plain_bytes(tensor))


def _plain_bytes(tensor: gguf.Tensor) -> int:
    if tensor.kind not in _PLAIN:
        raise ValueError(f"{tensor.name.decode('utf-8', 'replace')} is of the tensor type {tensor.kind}")
    return _PLAIN[tensor.kind]


def _pad(file: BinaryIO, alignment: int) -> None:
    file.write(bytes(-file.tell() % alignment))


def _pieces(data: mmap.mmap, tensor: gguf.Tensor, start: int) -> Iterator[Any]:
    """A tensor's bytes as they are to be written, a few megabytes at a time."""
    block_weights, block_bytes, decode = _DECODED.get(tensor.kind) or (1, _plain_bytes(tensor), None)
    if tensor.num_weights % block_weights:
        raise ValueError("a tensor ends within a block")
    end = start + tensor.num_weights // block_weights * block_bytes
    if end > len(data):
        raise gguf.CutShort
    step = _SLICE_BYTES // block_bytes * block_bytes
    for at in range(start, end, step):
        piece = data[at : min(at + step, end)]
        yield piece if decode is None else _in_f16(piece, block_bytes, decode)


def _in_f16(piece: bytes, block_bytes: int, decode: Decode) -> Any:
    numpy = _numpy()
    blocks = numpy.frombuffer(piece, dtype="u1").reshape(-1, block_bytes)
    try:
        with numpy.errstate(over="raise", invalid="ignore"):
            return decode(blocks).astype("<f2").data
    except FloatingPointError as exc:
        raise ValueError("a weight is too large for it") from exc


def _numpy() -> Any:
    try:
        import numpy
    except ImportError as exc:
        raise MissingExtra("preparing the weights", extra="llamacpp") from exc
    return numpy


def _q4_1(blocks: Any) -> Any:
    """32 weights a block: a scale and a minimum in F16, then 16 bytes with the first half in their lower four bits."""
    scale, least = (blocks[:, at : at + 2].copy().view("<f2").astype("f4") for at in (0, 2))
    quants = blocks[:, 4:]
    return _numpy().concatenate((quants & 15, quants >> 4), axis=1) * scale + least


def _q8_0(blocks: Any) -> Any:
    """32 weights a block: a scale in F16, then 32 signed bytes."""
    return blocks[:, 2:].view("i1") * blocks[:, :2].copy().view("<f2").astype("f4")


_PLAIN: Final = {0: 4, 1: 2}
"""ggml's numbers of F32 and F16: bytes a weight."""

_DECODED: Final[dict[int, tuple[int, int, Decode]]] = {3: (32, 20, _q4_1), 8: (32, 34, _q8_0)}
"""Of Q4_1 and Q8_0: weights and bytes a block, and how it is read. They are what the catalogue has."""

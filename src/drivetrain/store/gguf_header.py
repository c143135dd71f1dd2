"""Whether a GGUF file is whole, from its header and its size alone: no gguf package, no tensor is read.

The header is walked, not kept: keys and values are skipped except the alignment. Every length in it is checked
against the file before it is believed.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Final

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_NESTING = 4
_MAX_DIMENSIONS = 8

_STRING: Final = 8
_ARRAY: Final = 9
_UINT32: Final = 4
_SCALAR_BYTES: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

# ggml tensor type -> (weights in a block, bytes of a block), from ggml/src/ggml.c
_BLOCKS: Final = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82),
    23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2),
    34: (256, 54), 35: (256, 66), 39: (32, 17), 40: (64, 36), 41: (128, 18),
}  # fmt: skip


def is_gguf(path: Path) -> bool:
    """By the first four bytes."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def problem(path: Path) -> str | None:
    """What is wrong with the file, to be put after its name: None if nothing."""
    file_bytes = path.stat().st_size
    if file_bytes == 0:
        return "is empty"
    if not is_gguf(path):
        return "is not a GGUF file (its first bytes are others)"
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            needed_bytes = _Header(data).needed_bytes()
        except _CutShort:
            return f"is truncated: its {file_bytes} bytes end within the header"
        except ValueError as exc:
            return f"cannot be used: {exc}"
    if file_bytes < needed_bytes:
        return f"is truncated: it has {file_bytes} bytes of {needed_bytes}"
    return None


def num_parameters(path: Path) -> int:
    """The weights of all tensors together, in a file that has no `problem`."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        header = _Header(data)
        header.needed_bytes()
        return header.num_weights


class _CutShort(Exception):
    """The file ends where the header says that more follows."""


class _Header:
    """A cursor over the header."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = len(MAGIC)
        self._alignment = 32
        self.num_weights = 0

    def needed_bytes(self) -> int:
        """The size that the file must have at least. Raises `_CutShort` or `ValueError`."""
        version = self._uint32()
        if version not in _VERSIONS:
            raise ValueError(f"it is GGUF version {version}; versions 2 and 3 are read, little-endian")
        num_tensors, num_keys = self._uint64(), self._uint64()
        for _ in range(num_keys):
            self._skip_key()
        data_bytes = 0
        for _ in range(num_tensors):
            data_bytes = max(data_bytes, self._tensor_end())
        start = -(-self._at // self._alignment) * self._alignment if num_tensors else self._at
        return start + data_bytes

    def _skip_key(self) -> None:
        key = self._string()
        kind = self._uint32()
        if key == b"general.alignment" and kind == _UINT32:
            self._alignment = self._uint32()
            if self._alignment == 0 or self._alignment % 8:
                raise ValueError("its alignment is impossible")
        else:
            self._skip_value(kind, 0)

    def _skip_value(self, kind: int, nesting: int) -> None:
        if (num_bytes := _SCALAR_BYTES.get(kind)) is not None:
            self._skip(num_bytes)
        elif kind == _STRING:
            self._skip(self._uint64())
        elif kind == _ARRAY and nesting < _MAX_NESTING:
            item, count = self._uint32(), self._uint64()
            if (num_bytes := _SCALAR_BYTES.get(item)) is not None:
                self._skip(num_bytes * count)
            else:
                for _ in range(count):
                    self._skip_value(item, nesting + 1)
        else:
            raise ValueError(f"its header holds a value of unknown type {kind}")

    def _tensor_end(self) -> int:
        """Where a tensor ends, counted from the start of the data; for a type not known here, where it begins."""
        self._string()
        num_dimensions = self._uint32()
        if num_dimensions > _MAX_DIMENSIONS:
            raise ValueError("a tensor has too many dimensions")
        num_weights = 1
        for _ in range(num_dimensions):
            num_weights *= self._uint64()
        self.num_weights += num_weights
        kind, offset = self._uint32(), self._uint64()
        block_weights, block_bytes = _BLOCKS.get(kind, (1, 0))
        return offset + -(-num_weights // block_weights) * block_bytes

    def _uint32(self) -> int:
        return self._number("<I", 4)

    def _uint64(self) -> int:
        return self._number("<Q", 8)

    def _number(self, form: str, num_bytes: int) -> int:
        start = self._skip(num_bytes)
        value: int = struct.unpack_from(form, self._data, start)[0]
        return value

    def _string(self) -> bytes:
        num_bytes = self._uint64()
        start = self._skip(num_bytes)
        return self._data[start : start + num_bytes]

    def _skip(self, num_bytes: int) -> int:
        """Go on, and return where that began."""
        start = self._at
        if num_bytes > len(self._data) - start:
            raise _CutShort
        self._at = start + num_bytes
        return start

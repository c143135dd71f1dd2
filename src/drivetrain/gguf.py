"""The front of a GGUF file: its metadata and the table of its tensors. The standard library only; no tensor is read.

Every length in it is checked against the file before it is believed.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

MAGIC = b"GGUF"
MAX_DIMENSIONS = 8
MAX_NESTING = 4
_VERSIONS = (2, 3)

_SCALARS: Final = {
    0: ("B", 1), 1: ("b", 1), 2: ("H", 2), 3: ("h", 2), 4: ("I", 4), 5: ("i", 4), 6: ("f", 4), 7: ("?", 1),
    10: ("Q", 8), 11: ("q", 8), 12: ("d", 8),
}  # fmt: skip
_STRING: Final = 8
_ARRAY: Final = 9


class CutShort(ValueError):
    """The file ends where the header says that more follows."""

    def __init__(self) -> None:
        super().__init__("it ends in the middle of its header")


@dataclass(frozen=True, slots=True)
class Tensor:
    """`shape` has the innermost dimension first; `offset` counts from where the data begin."""

    name: bytes
    shape: tuple[int, ...]
    kind: int
    offset: int

    @property
    def num_weights(self) -> int:
        return math.prod(self.shape)


def alignment(metadata: Mapping[str, Any]) -> int:
    """To how many bytes each tensor is aligned, and where they begin."""
    found = metadata.get("general.alignment", 32)
    if not isinstance(found, int) or found <= 0 or found % 8:
        raise ValueError("its alignment is impossible")
    return found


def aligned(place: int, to: int) -> int:
    """The first place from here on that is a multiple."""
    return -(-place // to) * to


@contextmanager
def opened(path: Path) -> Iterator[Header]:
    """Raises `ValueError` where it is no GGUF file that can be read, or `OSError`."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        yield Header(data)


class Header:
    """A cursor: first `metadata`, then `tensors`, each once. Whatever is wrong is a `ValueError`."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._size = len(data)
        self.at = 0
        if self._take(len(MAGIC)) != MAGIC:
            raise ValueError("it does not begin with GGUF")
        version = self._number("<I", 4)
        if version not in _VERSIONS:
            raise ValueError(f"it is GGUF version {version}; versions 2 and 3 are read, little-endian")
        self.num_tensors = self._number("<Q", 8)
        self._num_keys = self._number("<Q", 8)
        self.places: dict[str, int] = {}
        """Where the value of each key begins, once the metadata are read."""

    def metadata(self, keep: Callable[[str], bool]) -> dict[str, Any]:
        """Strings are bytes. A list that is not kept is None, whatever else is not is left in."""
        found: dict[str, Any] = {}
        for _ in range(self._num_keys):
            key = self._take(self._number("<Q", 8)).decode("utf-8", "replace")
            kind = self._number("<I", 4)
            self.places[key] = self.at
            found[key] = self._value(kind, keep=keep(key))
        return found

    def tensors(self) -> Iterator[Tensor]:
        for _ in range(self.num_tensors):
            name = self._take(self._number("<Q", 8))
            num_dimensions = self._number("<I", 4)
            if num_dimensions > MAX_DIMENSIONS:
                raise ValueError("a tensor has too many dimensions")
            shape = tuple(self._number("<Q", 8) for _ in range(num_dimensions))
            yield Tensor(name, shape, kind=self._number("<I", 4), offset=self._number("<Q", 8))

    def _value(self, kind: int, *, keep: bool, nesting: int = 0) -> Any:
        if kind in _SCALARS:
            form, num_bytes = _SCALARS[kind]
            return self._number("<" + form, num_bytes)
        if kind == _STRING:
            return self._take(self._number("<Q", 8))
        if kind == _ARRAY and nesting < MAX_NESTING:
            return self._list(keep=keep, nesting=nesting)
        raise ValueError(f"its header holds a value of unknown type {kind}")

    def _list(self, *, keep: bool, nesting: int) -> Any:
        kind, count = self._number("<I", 4), self._number("<Q", 8)
        if kind in _SCALARS:
            form, num_bytes = _SCALARS[kind]
            start = self._skip(count * num_bytes)
            return struct.unpack_from(f"<{count}{form}", self._data, start) if keep else None
        if kind == _STRING:
            return self._strings(count, keep=keep)
        items = [self._value(kind, keep=keep, nesting=nesting + 1) for _ in range(count)]
        return items if keep else None

    def _strings(self, count: int, *, keep: bool) -> list[bytes] | None:
        """The hot loop: a vocabulary has up to some hundred thousand."""
        data, at, last = self._data, self.at, self._size - 8
        length_at: Callable[..., tuple[int]] = struct.Struct("<Q").unpack_from
        found: list[bytes] = []
        for _ in range(count):
            if at > last:
                raise CutShort
            (length,) = length_at(data, at)
            at += 8
            if keep:
                found.append(data[at : at + length])
            at += length
        if at > self._size:
            raise CutShort
        self.at = at
        return found if keep else None

    def _number(self, form: str, num_bytes: int) -> Any:
        (value,) = struct.unpack_from(form, self._data, self._skip(num_bytes))
        return value

    def _take(self, num_bytes: int) -> bytes:
        start = self._skip(num_bytes)
        return self._data[start : start + num_bytes]

    def _skip(self, num_bytes: int) -> int:
        """Go on, and return where that began."""
        start = self.at
        if num_bytes > self._size - start:
            raise CutShort
        self.at = start + num_bytes
        return start

"""The metadata at the front of a GGUF file: what llama.cpp knows of a model and does not tell over HTTP."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from drivetrain.core.errors import LoadFailed

MAGIC = b"GGUF"
MAX_DEPTH = 4

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_SKIPPED = frozenset({"tokenizer.ggml.merges", "tokenizer.ggml.scores"})
"""Long, and only of use to who splits text into ids: that is llama.cpp."""


def read_metadata(path: Path) -> Mapping[str, Any]:
    """Every key and value. Strings of the vocabulary stay bytes. Raises `LoadFailed`."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data).read()
    except FileNotFoundError as exc:
        raise LoadFailed("the GGUF file is not there any more; pull the model again") from exc
    except ValueError as exc:
        raise LoadFailed(f"this is not a usable GGUF file: {exc}") from exc
    except OSError as exc:
        raise LoadFailed(f"the GGUF file cannot be read: {exc.strerror or type(exc).__name__}") from exc


def as_text(value: Any) -> str | None:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else None


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def read(self) -> dict[str, Any]:
        try:
            return self._read()
        except struct.error:
            raise ValueError("it ends in the middle of its metadata") from None

    def _read(self) -> dict[str, Any]:
        if self._take(4) != MAGIC:
            raise ValueError("it does not begin with GGUF")
        version = self._scalar("I")
        if version not in (2, 3):
            raise ValueError(f"its version is {version}; 2 and 3 are known")
        _tensors, count = self._scalar("Q"), self._scalar("Q")
        found: dict[str, Any] = {}
        for _ in range(count):
            key = self._string().decode("utf-8", "replace")
            value = self._value(self._scalar("I"), keep=key not in _SKIPPED)
            found[key] = value
        return found

    def _value(self, kind: int, *, keep: bool, depth: int = 0) -> Any:
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind])
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY and depth < MAX_DEPTH:
            return self._array(keep=keep, depth=depth)
        raise ValueError(f"its metadata holds a value of unknown type {kind}")

    def _array(self, *, keep: bool, depth: int) -> Any:
        kind, count = self._scalar("I"), self._scalar("Q")
        if kind in _SCALARS:
            form = f"<{count}{_SCALARS[kind]}"
            raw = self._take(struct.calcsize(form))
            return struct.unpack(form, raw) if keep else None
        if kind == _STRING:
            return self._strings(count, keep=keep)
        items = [self._value(kind, keep=keep, depth=depth + 1) for _ in range(self._bounded(count))]
        return items if keep else None

    def _strings(self, count: int, *, keep: bool) -> list[bytes] | None:
        """The hot loop: a vocabulary has up to some hundred thousand."""
        data, at = self._data, self._at
        length_at: Callable[..., tuple[int]] = struct.Struct("<Q").unpack_from
        found: list[bytes] = []
        for _ in range(self._bounded(count)):
            (length,) = length_at(data, at)
            at += 8
            if keep:
                found.append(data[at : at + length])
            at += length
        self._at = at
        return found if keep else None

    def _bounded(self, count: int) -> int:
        if count > len(self._data):
            raise ValueError("it is damaged: a list in its metadata is longer than the file")
        return count

    def _string(self) -> bytes:
        return self._take(self._scalar("Q"))

    def _scalar(self, form: str) -> Any:
        (value,) = struct.unpack_from("<" + form, self._data, self._at)
        self._at += struct.calcsize("<" + form)
        return value

    def _take(self, length: int) -> bytes:
        taken = self._data[self._at : self._at + length]
        if len(taken) != length:
            raise ValueError("it ends in the middle of its metadata")
        self._at += length
        return taken

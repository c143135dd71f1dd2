"""The head of a safetensors file, for the store and the engines: is the file complete, and in which types its tensors
are stored. Needs no torch and reads no tensors.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

MAX_HEADER_BYTES = 100_000_000
"""What the safetensors library itself allows."""

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

_LFS = b"version https://git-lfs.github.com/spec/v1\n"


def lfs_pointer(path: Path) -> str | None:
    """For a small text that Git LFS leaves in place of a file: what it is, worded to follow the file's name."""
    with path.open("rb") as file:
        if file.read(len(_LFS)) != _LFS:
            return None
        lines = file.read(1000).decode("utf-8", "replace").splitlines()
    size = next((line.removeprefix("size ") for line in lines if line.startswith("size ")), "")
    where = f" of {int(size):,} bytes" if size.isdecimal() else ""
    return f"is a Git LFS pointer in place of a file{where}"


def problem(path: Path) -> str | None:
    """What is wrong with the file, worded to follow its name; None if nothing is."""
    file_bytes = path.stat().st_size
    if file_bytes == 0:
        return "is empty"
    with path.open("rb") as file:
        prefix = file.read(8)
        if len(prefix) < 8:
            return f"is truncated: it has only {file_bytes} bytes"
        (header_bytes,) = struct.unpack("<Q", prefix)
        if header_bytes > MAX_HEADER_BYTES or header_bytes < 2:
            return "is not a safetensors file (its header has an impossible length)"
        if 8 + header_bytes > file_bytes:
            return f"is truncated: it has {file_bytes} bytes, its header alone needs {8 + header_bytes}"
        raw = file.read(header_bytes)
    try:
        expected_bytes = 8 + header_bytes + _data_bytes(json.loads(raw))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "is not a safetensors file (its header cannot be read)"
    if file_bytes < expected_bytes:
        return f"is truncated: it has {file_bytes} bytes of {expected_bytes}"
    if file_bytes > expected_bytes:
        return f"is damaged: it has {file_bytes} bytes instead of {expected_bytes}"
    return None


def stored_types(folder: Path) -> frozenset[str]:
    """The types of the tensors of a model's folder, in the format's own names, such as BF16 and I32.

    Only the files that its weights are loaded from count, and of those the whole ones.
    """
    whole = (path for path in _weights(folder) if path.is_file() and problem(path) is None)
    return frozenset(str(tensor.get("dtype")) for path in whole for tensor in _tensors(path))


def _weights(folder: Path) -> list[Path]:
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if (folder / INDEX).is_file():
        shards = json.loads((folder / INDEX).read_bytes())["weight_map"].values()
        return [folder / shard for shard in sorted(set(shards))]
    return sorted(folder.glob("*.safetensors"))


def _tensors(path: Path) -> list[dict[str, Any]]:
    with path.open("rb") as file:
        (header_bytes,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(header_bytes))
    return [tensor for name, tensor in header.items() if name != "__metadata__"]


def _data_bytes(header: Any) -> int:
    """Where the last tensor ends, counted from the end of the header."""
    end = 0
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        first, last = tensor["data_offsets"]
        if not 0 <= first <= last:
            raise ValueError("impossible offsets")
        end = max(end, last)
    return end

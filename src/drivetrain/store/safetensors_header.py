"""Whether a safetensors file is complete, judging by its header and size. Needs no torch and reads no tensors."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

MAX_HEADER_BYTES = 100_000_000
"""What the safetensors library itself allows."""


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

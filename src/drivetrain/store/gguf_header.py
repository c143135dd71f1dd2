"""Whether a GGUF file is complete, judging by its header and size. Needs no gguf package and reads no tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from drivetrain import gguf

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
        return file.read(len(gguf.MAGIC)) == gguf.MAGIC


def problem(path: Path) -> str | None:
    """What is wrong with the file, worded to follow its name; None if nothing is."""
    file_bytes = path.stat().st_size
    if file_bytes == 0:
        return "is empty"
    if not is_gguf(path):
        return "is not a GGUF file (its first bytes are wrong)"
    try:
        needed_bytes = _needed_bytes(path)
    except gguf.CutShort:
        return f"is truncated: its {file_bytes} bytes end within the header"
    except ValueError as exc:
        return f"cannot be used: {exc}"
    if file_bytes < needed_bytes:
        return f"is truncated: it has {file_bytes} bytes of {needed_bytes}"
    return None


def num_parameters(path: Path) -> int:
    """The number of weights in all tensors of a file that has no `problem`."""
    with gguf.opened(path) as header:
        header.metadata(lambda key: False)
        return sum(tensor.num_weights for tensor in header.tensors())


def _needed_bytes(path: Path) -> int:
    """The least size that the file can have. A tensor of an unknown type counts as empty."""
    with gguf.opened(path) as header:
        alignment = gguf.alignment(header.metadata(lambda key: False))
        data_bytes = 0
        for tensor in header.tensors():
            block_weights, block_bytes = _BLOCKS.get(tensor.kind, (1, 0))
            data_bytes = max(data_bytes, tensor.offset + -(-tensor.num_weights // block_weights) * block_bytes)
        start = gguf.aligned(header.at, alignment) if header.num_tensors else header.at
        return start + data_bytes

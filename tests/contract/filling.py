"""The suite's models with tokens for filling in the middle in their vocabularies: the names of Qwen2.5-Coder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from drivetrain.text.byte_tokenizer import SPECIALS, ByteTokenizer
from tiny.causal import INFILL

PREFIX, SUFFIX, MIDDLE, END = INFILL

_RENAMED = {b"<jupyter_text>": PREFIX, b"<jupyter_code>": SUFFIX, b"<empty_output>": MIDDLE}
"""Special tokens of SmolLM2 that are as long. It has the end itself."""


class FillingBytes(ByteTokenizer):
    """For the fake engine."""

    specials = (*SPECIALS, *INFILL)
    vocab_size = 256 + len(specials)
    longest_piece = max(map(len, specials))
    special_strings = frozenset(specials)


@contextmanager
def filling_gguf(path: Path) -> Iterator[Path]:
    """A copy of SmolLM2 with some of its special tokens renamed."""
    data = path.read_bytes()
    assert all(data.count(old) == 1 for old in _RENAMED)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        copy.write_bytes(_renamed(data))
        yield copy


@contextmanager
def filling_folder(path: Path) -> Iterator[Path]:
    """The same of a folder of safetensors, whose weights are not copied."""
    with tempfile.TemporaryDirectory() as folder:
        for file in path.iterdir():
            copy = Path(folder) / file.name
            if file.name == "tokenizer.json":
                copy.write_bytes(_renamed(file.read_bytes()))
            else:
                copy.symlink_to(file)
        yield Path(folder)


def _renamed(data: bytes) -> bytes:
    for old, new in _RENAMED.items():
        assert old in data
        assert len(old) == len(new)
        data = data.replace(old, new.encode())
    return data

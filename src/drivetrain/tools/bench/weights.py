"""How many parameters a model has and how many bytes they are, from the headers of its files."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path

from drivetrain.core.engine import WeightsFormat
from drivetrain.store import gguf_header
from drivetrain.store.formats import detect

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
_LLAMACPP_BYTES = {"F16": 2, "BF16": 2}


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights as they are in the files. An engine may hold them in another form; see `bytes_as`."""

    num_parameters: int
    file_bytes: int
    format: WeightsFormat

    def bytes_as(self, engine: str | None, dtype: str | None) -> int | None:
        """What an engine reads for one token if it reads every weight once; None if not known.

        llama.cpp runs the file as it is, or a wider copy; the others hold every weight in their dtype.
        """
        each = (_LLAMACPP_BYTES if engine == "llamacpp" else _BYTES).get(dtype or "")
        if each is None:
            return self.file_bytes if engine == "llamacpp" else None
        return self.num_parameters * each


def weigh(path: Path) -> Weights:
    """Raises `LoadFailed` if the model is not complete."""
    found = detect(path)
    if found.format is WeightsFormat.GGUF:
        return Weights(gguf_header.num_parameters(found.path), found.path.stat().st_size, found.format)
    files = [found.path / name for name in found.files]
    parameters = sum(map(_num_parameters, files))
    return Weights(parameters, sum(file.stat().st_size for file in files), found.format)


def _num_parameters(path: Path) -> int:
    with path.open("rb") as file:
        (header_bytes,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(header_bytes))
    return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")

"""The metadata at the front of a GGUF file: what llama.cpp knows of a model and does not tell over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drivetrain import gguf
from drivetrain.core.errors import LoadFailed

_SKIPPED = frozenset({"tokenizer.ggml.merges", "tokenizer.ggml.scores"})
"""Long, and only of use to who splits text into ids: that is llama.cpp."""


def read_metadata(path: Path) -> Mapping[str, Any]:
    """Every key and value. Strings of the vocabulary stay bytes. Raises `LoadFailed`."""
    try:
        with gguf.opened(path) as header:
            return header.metadata(lambda key: key not in _SKIPPED)
    except FileNotFoundError as exc:
        raise LoadFailed("the GGUF file is not there any more; pull the model again") from exc
    except ValueError as exc:
        raise LoadFailed(f"this is not a usable GGUF file: {exc}") from exc
    except OSError as exc:
        raise LoadFailed(f"the GGUF file cannot be read: {exc.strerror or type(exc).__name__}") from exc


def as_text(value: Any) -> str | None:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else None

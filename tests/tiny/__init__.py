"""Tiny checkpoints of real architectures, with random weights, made on the spot: see README.md."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from tiny import causal, embedding, scoring, seq2seq, vision
from tiny.texts import TEXT
from tiny.weights import Builder, quiet

__all__ = ["ALL", "CAUSAL", "ENCODERS", "NEEDS_TORCHVISION", "SCORERS", "SEQ2SEQ", "TEXT", "VISION", "checkpoint"]

CAUSAL: tuple[str, ...] = tuple(causal.ARCHITECTURES)
SEQ2SEQ: tuple[str, ...] = tuple(seq2seq.ARCHITECTURES)
VISION: tuple[str, ...] = tuple(vision.ARCHITECTURES)
ENCODERS: tuple[str, ...] = tuple(embedding.ARCHITECTURES)
SCORERS: tuple[str, ...] = tuple(scoring.ARCHITECTURES)
NEEDS_TORCHVISION: tuple[str, ...] = tuple(vision.NEEDS_TORCHVISION)

_BUILDERS: dict[str, Builder] = {
    **causal.ARCHITECTURES,
    **seq2seq.ARCHITECTURES,
    **vision.ARCHITECTURES,
    **embedding.ARCHITECTURES,
    **scoring.ARCHITECTURES,
    **vision.NEEDS_TORCHVISION,
    **causal.INFILLING,
}
ALL: tuple[str, ...] = tuple(_BUILDERS)


def checkpoint(name: str, root: Path) -> Path:
    """The folder of this checkpoint under `root`, made now if it is not there. Safe among several processes."""
    folder = root / name
    if folder.is_dir():
        return folder
    build = _BUILDERS[name]
    root.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=root))
    try:
        draft.chmod(0o755)
        with quiet():
            build(draft)
        try:
            os.rename(draft, folder)
        except OSError:
            if not folder.is_dir():  # otherwise another process was first, and made the same
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder

"""What the store returns: values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drivetrain.core.engine import WeightsFormat

SHA256 = "sha256:"
PREFIX = "quick-"
"""Marks a key that is not the sha256 of the contents, which would mean reading a large file at each start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalModel:
    """Weights on this disk, checked as far as headers and sizes can tell.

    `path` is what an engine loads: the folder for safetensors, the file for GGUF. `digest` names the contents: the
    sha256 of a pulled GGUF, one over the files of another pulled model, else a `quick-…` key (see `digests`).
    `sampling` comes from the catalogue, for a short name, and so does `form`: in what form llama.cpp should run them,
    if not as they are.
    """

    name: str
    path: Path
    format: WeightsFormat
    reference: str
    digest: str | None
    source: str
    sampling: Mapping[str, Any] = field(default_factory=dict)
    form: str | None = None

    @property
    def weights(self) -> str | None:
        """The digest as receipts have it: `sha256:…` or `quick-…`."""
        known = self.digest
        return known if known is None or known.startswith(PREFIX) else f"{SHA256}{known}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModel:
    """A line of `drivetrain list`. `damage` says why it must be pulled again."""

    name: str
    source: str
    format: WeightsFormat
    size_bytes: int
    derived_bytes: int
    pulled_at: str
    damage: str | None = None

"""The stages of one model."""

from __future__ import annotations

from enum import StrEnum


class Stage(StrEnum):
    """`FAILED` means not loaded, after a failed load or an engine that will not come back."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    READY = "ready"
    UNLOADING = "unloading"
    FAILED = "failed"

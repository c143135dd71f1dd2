"""Where one model stands."""

from __future__ import annotations

from enum import StrEnum


class Stage(StrEnum):
    """`FAILED` is not loaded, after a load that went wrong."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    READY = "ready"
    UNLOADING = "unloading"
    FAILED = "failed"

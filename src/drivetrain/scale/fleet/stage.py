"""Where one model stands."""

from __future__ import annotations

from enum import StrEnum


class Stage(StrEnum):
    """`FAILED` is not loaded, after a load that went wrong or an engine that will not come back."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    READY = "ready"
    UNLOADING = "unloading"
    FAILED = "failed"

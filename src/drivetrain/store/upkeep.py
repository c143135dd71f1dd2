"""Keeping the store tidy: empty folders to build in, and an end for what was broken off. Locks are respected."""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection
from difflib import get_close_matches
from pathlib import Path

from drivetrain.store.layout import Layout, is_stale
from drivetrain.store.locks import locked_if_free


def emptied(folder: Path) -> Path:
    """The folder, made anew: what a killed process left in it is gone."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return folder


def clear_partials(layout: Layout, *, stale_only: bool = False) -> int:
    """Delete downloads and builds that nobody holds the lock of; with `stale_only` those that nobody will resume.

    Returns the bytes freed.
    """
    now_s = time.time()
    freed = 0
    for path in layout.partial_folders():
        if stale_only and not is_stale(path, now_s):
            continue
        with locked_if_free(layout.lock(path.name)) as is_ours:
            if is_ours and path.is_dir():
                freed += layout.discard(path)
    return freed


def close_names(name: str, names: Collection[str]) -> str:
    """The end of an error for a name that is not in the store."""
    if not names:
        return "the store is empty"
    close = get_close_matches(name[:100], sorted(names), n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else "drivetrain list shows what is there"

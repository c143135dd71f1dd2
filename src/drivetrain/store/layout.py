"""Where the store keeps things, and how they arrive whole: staging on the same disk, fsync, one rename.

    <root>/models/<folder>/        a pulled model and its manifest, once complete
    <root>/derived/<digest>/<kind> what an engine made from weights, once complete
    <root>/partial/                downloads and builds in progress, and what is being deleted
    <root>/locks/                  one file for each lock that is held

Nothing here knows what a model is.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from drivetrain.core.errors import LoadFailed
from drivetrain.core.user_cache import user_cache
from drivetrain.store.display import size as size_text
from drivetrain.store.locks import locked_if_free

STALE_AFTER_S = 14 * 24 * 3600.0

_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+=-]{0,254}")
_FULL = (errno.ENOSPC, errno.EDQUOT)


def default_root(environ: Mapping[str, str] | None = None) -> Path:
    """`DRIVETRAIN_HOME`, else `$XDG_CACHE_HOME/drivetrain`, else `~/.cache/drivetrain`."""
    env = os.environ if environ is None else environ
    try:
        if home := env.get("DRIVETRAIN_HOME"):
            return Path(home).expanduser().absolute()
        return user_cache(env)
    except RuntimeError as exc:
        raise LoadFailed("there is no home folder to keep models in; set DRIVETRAIN_HOME to a folder") from exc


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths under one root. Every variable part must be one plain folder name."""

    root: Path

    @property
    def models(self) -> Path:
        return self.root / "models"

    def model(self, folder: str) -> Path:
        return self.models / _plain(folder)

    def derived(self, digest: str, kind: str) -> Path:
        return self.derived_of(digest) / _plain(kind)

    def derived_of(self, digest: str) -> Path:
        return self.root / "derived" / _plain(digest)

    def partial(self, folder: str) -> Path:
        return self.root / "partial" / _plain(folder)

    def lock(self, folder: str) -> Path:
        return self.root / "locks" / f"{_plain(folder)}.lock"

    def model_folders(self) -> list[Path]:
        return _folders_in(self.models)

    def partial_folders(self) -> list[Path]:
        return _folders_in(self.root / "partial")

    def derived_folders(self) -> list[Path]:
        return _folders_in(self.root / "derived")

    def discard(self, path: Path) -> int:
        """Delete a folder and return the bytes freed. It is renamed first, so nobody sees half of it."""
        freed = folder_size(path)
        doomed = self.partial(f"removed-{os.getpid()}-{time.monotonic_ns()}")
        doomed.parent.mkdir(parents=True, exist_ok=True)
        path.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)
        return freed

    def publish(self, staged: Path, target: Path) -> None:
        """Give a finished folder its final name once it is safely on the disk, replacing what has that name."""
        _sync_tree(staged)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            self.discard(target)
        staged.rename(target)
        _sync(target.parent)

    def clear_partials(self, *, stale_only: bool = False) -> int:
        """Delete the downloads and builds whose lock nobody holds; with `stale_only`, those that nobody will resume.

        Returns the bytes freed.
        """
        now_s = time.time()
        freed = 0
        for path in self.partial_folders():
            if stale_only and not is_stale(path, now_s):
                continue
            with locked_if_free(self.lock(path.name)) as is_ours:
                if is_ours and path.is_dir():
                    freed += self.discard(path)
        return freed


def emptied(folder: Path) -> Path:
    """The folder, new and empty: what a killed process left in it is gone."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return folder


def folder_size(path: Path) -> int:
    """Bytes in all files below the folder. Links are not followed, and files deleted meanwhile are not counted."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


def is_stale(path: Path, now_s: float) -> bool:
    """Whether nothing in the folder was written for so long that nobody will resume it."""
    newest = 0.0
    for entry in (path, *path.rglob("*")):
        with suppress(OSError):
            newest = max(newest, entry.lstat().st_mtime)
    return now_s - newest > STALE_AFTER_S


def free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def require_space(what: str, needed_bytes: int, free: int) -> None:
    """Raises `LoadFailed` if there is too little."""
    if free < needed_bytes:
        raise LoadFailed(
            f"not enough disk space for {what}: {size_text(needed_bytes)} are needed, {size_text(free)} are free; "
            "free some space, or set DRIVETRAIN_HOME to a folder on a larger disk"
        )


@contextmanager
def disk_errors(doing: str, *, only_full: bool = False, raises: type[LoadFailed] = LoadFailed) -> Iterator[None]:
    """Turns an error of the file system into one line with a remedy and without paths.

    `only_full` is for what raises other `OSError`s of its own.
    """
    try:
        yield
    except OSError as exc:
        if only_full and exc.errno not in _FULL:
            raise
        reason = exc.strerror or type(exc).__name__
        if exc.errno in _FULL:
            raise raises(
                f"cannot {doing}: the disk is full; free some space (drivetrain list shows the models, "
                "drivetrain rm deletes one), or set DRIVETRAIN_HOME to a folder on a larger disk"
            ) from exc
        raise raises(f"cannot {doing}: {reason}; set DRIVETRAIN_HOME to a folder that can be written") from exc


def _folders_in(parent: Path) -> list[Path]:
    """Those whose names could be ours."""
    if not parent.is_dir():
        return []
    return sorted(path for path in parent.iterdir() if _is_plain(path.name) and path.is_dir() and not path.is_symlink())


def _is_plain(name: str) -> bool:
    return _FOLDER.fullmatch(name) is not None and ".." not in name


def _plain(name: str) -> str:
    if not _is_plain(name):
        raise ValueError(f"not a plain folder name: {name!r}")
    return name


def _sync_tree(root: Path) -> None:
    for folder, _, names in os.walk(root, topdown=False):
        for name in names:
            _sync(Path(folder, name))
        _sync(Path(folder))


def _sync(path: Path) -> None:
    if os.name == "nt" and path.is_dir():  # Windows cannot open a folder, and keeps its renames in order by itself
        return
    flags = os.O_RDWR if os.name == "nt" else os.O_RDONLY
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

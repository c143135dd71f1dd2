"""The sha256 of a file, and a cheap key for weights outside the store that notices a change but proves nothing."""

from __future__ import annotations

import hashlib
from pathlib import Path

from drivetrain.store.formats import ModelFiles
from drivetrain.store.models import PREFIX

SAMPLE_BYTES = 1024 * 1024


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def quick_digest(found: ModelFiles) -> str:
    """`quick-` and the sha256 over size, modification time, first and last MiB of each weight file (and the config).

    It changes when a file is written or replaced, even with the same contents. Moving or loading the model does not
    change it.
    """
    folder = found.path if found.path.is_dir() else found.path.parent
    extra = [name for name in ("config.json",) if found.path.is_dir() and (folder / name).is_file()]
    digest = hashlib.sha256()
    for name in sorted({*found.files, *extra}):
        _add_file(digest, folder / name, name if found.path.is_dir() else "")
    return PREFIX + digest.hexdigest()


def _add_file(digest: hashlib._Hash, path: Path, name: str) -> None:
    stat = path.stat()
    digest.update(f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
    with path.open("rb") as file:
        digest.update(file.read(SAMPLE_BYTES))
        file.seek(max(0, stat.st_size - SAMPLE_BYTES))
        digest.update(file.read(SAMPLE_BYTES))

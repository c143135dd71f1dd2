"""Reports written to files: the paths are checked before the work begins, the files written when it is done."""

from __future__ import annotations

import json
from pathlib import Path

from drivetrain.cli.terminal import output
from drivetrain.core.errors import DrivetrainError, InvalidSetting


def check_writable(*paths: Path | None) -> None:
    """Raises `InvalidSetting` for a path that cannot become a file."""
    for path in paths:
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise InvalidSetting(f"{path} cannot be written: its folder does not exist, or it is a folder itself")


def write_text(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8", errors="backslashreplace")
    except OSError as exc:
        raise DrivetrainError(f"{path} cannot be written: {exc.strerror or type(exc).__name__}") from exc
    output.note(f"written: {path}")


def write_json(path: Path, document: object) -> None:
    write_text(path, json.dumps(document, indent=2, allow_nan=False) + "\n")

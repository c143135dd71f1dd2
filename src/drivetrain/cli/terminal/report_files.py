"""Reports written to files: the paths are checked before the work begins, the files written when it is done."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from drivetrain.cli.terminal import output
from drivetrain.core.errors import DrivetrainError, InvalidSetting


def add_report(group: Any, *other_names: str) -> None:
    """The flag for an HTML report, the same for every command."""
    group.add_argument(
        *other_names, "--report", dest="report", type=Path, metavar="FILE.html",
        help="write the report as one HTML page",
    )  # fmt: skip


def check_writable(*paths: Path | None) -> None:
    """Raises `InvalidSetting` for a path that cannot become a file, and for one that is given twice."""
    given = [path for path in paths if path is not None]
    for path in given:
        if problem := _problem(path):
            raise InvalidSetting(f"{path} cannot be written: {problem}")
        if sum(os.path.abspath(path) == os.path.abspath(other) for other in given) > 1:
            raise InvalidSetting(f"{path} is named for two reports; give each its own file")


def _problem(path: Path) -> str:
    try:
        if path.is_dir():
            return f"it is a folder; name a file, such as {path / 'report.html'}"
        if path.exists():
            return "" if os.access(path, os.W_OK) else "the file is there, and may not be changed"
        if not path.parent.is_dir():
            return f"the folder {path.parent} does not exist"
        return "" if os.access(path.parent, os.W_OK | os.X_OK) else f"no file may be made in {path.parent}"
    except OSError as exc:
        return exc.strerror or type(exc).__name__


def write_text(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8", errors="backslashreplace")
    except OSError as exc:
        raise DrivetrainError(f"{path} cannot be written: {exc.strerror or type(exc).__name__}") from exc
    output.note(f"written: {path}")


def write_json(path: Path, document: object) -> None:
    write_text(path, json.dumps(document, indent=2, allow_nan=False) + "\n")

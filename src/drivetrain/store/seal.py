"""The sizes of the files in a derived folder, written last: a folder that does not have them is made again."""

from __future__ import annotations

import json
import os
from pathlib import Path

FILENAME = "drivetrain.json"
RECIPE = 1
"""Raise it when what an engine derives changes: what was derived before is then made again."""


def seal(folder: Path) -> None:
    paths = sorted(Path(where, name) for where, _, names in os.walk(folder) for name in names)
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}
    (folder / FILENAME).write_text(json.dumps({"recipe": RECIPE, "sizes": sizes}) + "\n", encoding="utf-8")


def is_whole(folder: Path) -> bool:
    """Whether each file is there with its size, and was made by this recipe."""
    try:
        sealed = json.loads((folder / FILENAME).read_text(encoding="utf-8"))
        sizes = sealed["sizes"].items()
        return sealed["recipe"] == RECIPE and all((folder / name).stat().st_size == size for name, size in sizes)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False

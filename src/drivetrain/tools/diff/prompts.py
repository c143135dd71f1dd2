"""The prompts: a handful of our own, or a file."""

from __future__ import annotations

import json
from pathlib import Path

from drivetrain.core.errors import InvalidSetting

BUILT_IN = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "Water boils at 100 degrees because",
    "def fibonacci(n):\n    ",
    "1, 1, 2, 3, 5, 8, 13,",
    "The three most important things in a good letter are",
    "Der schnellste Weg von Berlin nach München ist",
    "Question: Why is the sky blue?\nAnswer:",
)


def read_prompts(path: Path) -> tuple[str, ...]:
    """One prompt per line; in a `.jsonl` file each line is a JSON string. Blank lines are skipped.

    Raises `InvalidSetting`.
    """
    try:
        text = path.read_text("utf-8")
    except OSError as exc:
        raise InvalidSetting(f"{path} cannot be read: {exc.strerror or type(exc).__name__}") from exc
    except UnicodeDecodeError as exc:
        raise InvalidSetting(f"{path} is not UTF-8 text (at byte {exc.start})") from None
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise InvalidSetting(f"{path} contains no prompt; write one per line")
    if path.suffix.lower() == ".jsonl":
        return tuple(_from_json(line, f"{path}, line {number}") for number, line in lines)
    return tuple(line.rstrip("\r") for _, line in lines)


def _from_json(line: str, where: str) -> str:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, str) or not found:
        raise InvalidSetting(f"{where} must be a JSON string that is not empty")
    return found

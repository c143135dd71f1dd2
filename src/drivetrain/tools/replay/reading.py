"""Receipts from files and folders: one a file, one a line, or inside the answers that came with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drivetrain.core.errors import InvalidSetting
from drivetrain.core.receipt import Receipt
from drivetrain.core.sealing import Signature, opened, read

SUFFIXES = (".json", ".jsonl")


@dataclass(frozen=True, slots=True)
class Entry:
    """One receipt and where it stands; or, without a receipt, the `fault` of what stands there."""

    where: str
    receipt: Receipt | None
    signature: Signature = Signature.NONE
    fault: str = ""


def read_entries(paths: Sequence[Path], key: bytes | None) -> list[Entry]:
    """All that is there, in order. Raises `InvalidSetting` for a path that cannot be read or has nothing."""
    entries = [entry for path in paths for file in _files(path) for entry in _of_file(file, key)]
    if not entries:
        raise InvalidSetting(f"{', '.join(map(str, paths))}: there is no receipt")
    return entries


def _files(path: Path) -> Iterable[Path]:
    if not path.is_dir():
        return (path,)
    return sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())


def _of_file(file: Path, key: bytes | None) -> Iterator[Entry]:
    if not file.is_file():
        raise InvalidSetting(f"{file} is not a file" if file.exists() else f"{file} does not exist")
    try:
        text = file.read_text("utf-8")
    except OSError as exc:
        raise InvalidSetting(f"{file} cannot be read: {exc.strerror or type(exc).__name__}") from exc
    except UnicodeDecodeError as exc:
        yield Entry(str(file), None, fault=f"the receipt is not valid: it is not UTF-8 text (at byte {exc.start})")
        return
    if file.suffix.lower() != ".jsonl":
        yield from _of_text(str(file), text, key)
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield from _of_text(f"{file}:{number}", line, key)


def _of_text(where: str, text: str, key: bytes | None) -> Iterator[Entry]:
    try:
        found = _documents(read(text))
    except InvalidSetting as exc:
        yield Entry(where, None, fault=exc.message)
        return
    for place, each in enumerate(found):
        label = where if len(found) == 1 else f"{where}[{place}]"
        try:
            if not isinstance(each, Mapping):
                raise InvalidSetting("the receipt is not valid: it is no object")
            yield Entry(label, *opened(each, key))
        except InvalidSetting as exc:
            yield Entry(label, None, fault=exc.message)


def _documents(found: dict[str, Any]) -> list[Any]:
    """The document itself, or those in an answer."""
    if "form" in found:
        return [found]
    inside = found["receipts"] if isinstance(found.get("receipts"), list) else [found.get("receipt", found)]
    return inside or [found]

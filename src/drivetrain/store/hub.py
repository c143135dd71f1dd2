"""Hugging Face ids, by `huggingface_hub`, which is imported only here and only when one is asked for.

What the user's own Hugging Face cache already holds is used where it lies; what has to be fetched goes to the store.
"""

from __future__ import annotations

import glob
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drivetrain.core.engine import Progress
from drivetrain.core.errors import DrivetrainError, LoadFailed, MissingExtra, ModelNotFound
from drivetrain.store.connection import OFFLINE_REMEDY
from drivetrain.store.display import one_line
from drivetrain.store.display import size as size_text
from drivetrain.store.download import free_bytes
from drivetrain.store.formats import detect
from drivetrain.store.hub_files import SAFE_PATTERNS, RemoteFile, choose
from drivetrain.store.layout import folder_size
from drivetrain.store.manifest import FileRecord, sha256_of
from drivetrain.store.references import HubId

POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Fetched:
    files: tuple[FileRecord, ...]
    commit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
    """The hub, and the doors to the world that tests replace. None: as `huggingface_hub` is set up."""

    endpoint: str | None = None
    cache_dir: Path | None = None
    timeout_s: float = 15.0
    free_bytes: Callable[[Path], int] = free_bytes

    def find_cached(self, hub_id: HubId) -> Path | None:
        """A complete snapshot in the user's Hugging Face cache; the network is not used. Raises `MissingExtra`."""
        if hub_id.variant is not None:  # a cached folder does not tell which GGUF was meant
            return None
        library = _library()
        with _translated(hub_id):
            try:
                snapshot = library.snapshot_download(
                    hub_id.repo,
                    revision=hub_id.revision,
                    cache_dir=self.cache_dir,
                    allow_patterns=list(SAFE_PATTERNS),
                    local_files_only=True,
                )
            except library.errors.LocalEntryNotFoundError:  # nothing, or not all of it
                return None
        folder = Path(snapshot)
        try:
            detect(folder)
        except LoadFailed:  # somebody fetched a few of its files only
            return None
        return folder

    def fetch(self, hub_id: HubId, content: Path, progress: Progress) -> Fetched:
        """Fill `content` with the model's files, going on where an earlier call broke off.

        Raises `LoadFailed`, `ModelNotFound` or `MissingExtra`; `content` then may hold a part.
        """
        library = _library()
        progress(f"looking for {hub_id.name}", None)
        with _translated(hub_id):
            commit, files = self._list_files(library, hub_id)
        wanted = choose(files, hub_id)
        self._check_space(hub_id, wanted, content)
        with _translated(hub_id), _reported(hub_id, wanted, content, progress):
            library.snapshot_download(
                hub_id.repo,
                revision=commit,
                local_dir=content,
                endpoint=self.endpoint,
                allow_patterns=[glob.escape(file.name) for file in wanted],
                tqdm_class=_quiet(library.utils.tqdm),
            )
        _keep_only(content, {file.name for file in wanted})
        return Fetched(_check_files(hub_id, wanted, content, progress), commit)

    def _list_files(self, library: Any, hub_id: HubId) -> tuple[str, list[RemoteFile]]:
        """Asked for by ourselves: with a partly filled folder and no network, the library would call it complete."""
        info = library.HfApi(endpoint=self.endpoint).model_info(
            hub_id.repo, revision=hub_id.revision, files_metadata=True, timeout=self.timeout_s
        )
        files = [
            RemoteFile(item.rfilename, item.size, item.lfs.sha256 if item.lfs is not None else None)
            for item in info.siblings or ()
        ]
        return str(info.sha), files

    def _check_space(self, hub_id: HubId, wanted: list[RemoteFile], content: Path) -> None:
        needed = sum(file.size_bytes or 0 for file in wanted) - folder_size(content)
        free = self.free_bytes(content)
        if free < needed:
            raise LoadFailed(
                f"not enough disk space for {hub_id.name}: {size_text(needed)} are needed, {size_text(free)} are free; "
                "free some space, or set DRIVETRAIN_HOME to a folder on a larger disk"
            )


def _library() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError as exc:
        raise MissingExtra("pulling from the Hugging Face hub", extra="hub") from exc
    return huggingface_hub


@contextmanager
def _translated(hub_id: HubId) -> Iterator[None]:
    """The one place where the library's exceptions become ours."""
    try:
        yield
    except DrivetrainError:
        raise
    except foreign_errors() as exc:
        raise translate(exc, hub_id) from exc


def foreign_errors() -> tuple[type[BaseException], ...]:
    """All that `huggingface_hub` raises from a download; some exist only in some of its versions.

    `HTTPError` is that of the HTTP library which the version at hand uses.
    """
    from huggingface_hub import errors

    names = (
        "HTTPError",
        "EntryNotFoundError",
        "CachedRepoTreeNotFoundError",
        "RevisionResolutionError",
        "CorruptedCacheException",
        "CacheNotFound",
        "XetDownloadError",
        "FileDuplicationError",
    )
    return (OSError, ValueError, *(kind for name in names if (kind := getattr(errors, name, None)) is not None))


def translate(exc: BaseException, hub_id: HubId) -> DrivetrainError:
    """One line with a remedy, for anything that `huggingface_hub` raises."""
    from huggingface_hub import errors

    repo = hub_id.repo
    if isinstance(exc, errors.LocalEntryNotFoundError) and exc.__cause__ is not None:
        return translate(exc.__cause__, hub_id)  # "not here", because of what happened there
    if isinstance(exc, errors.GatedRepoError):
        return LoadFailed(
            f"{repo} is gated: accept its terms on its page at the hub, then run `hf auth login` or set HF_TOKEN"
        )
    if isinstance(exc, errors.RepositoryNotFoundError):
        return ModelNotFound(
            f"the Hugging Face hub has no model {repo}, or it is private: check the spelling, or run `hf auth login` "
            "or set HF_TOKEN"
        )
    if isinstance(exc, errors.RevisionNotFoundError):
        return ModelNotFound(f"{repo} has no revision {hub_id.revision or 'main'}; look at its branches and tags")
    if isinstance(exc, errors.DisabledRepoError):
        return LoadFailed(f"{repo} was disabled on the Hugging Face hub; use another model")
    if isinstance(exc, errors.HFValidationError):
        return ModelNotFound(f"{repo} is not a valid Hugging Face id; it should look like org/name")
    if isinstance(exc, errors.OfflineModeIsEnabled):
        return LoadFailed(f"{repo} is not on this machine, and HF_HUB_OFFLINE is set; unset it, or give a local folder")
    if isinstance(exc, errors.HfHubHTTPError):
        status = getattr(getattr(exc, "response", None), "status_code", "?")
        return LoadFailed(f"cannot fetch {repo}: the Hugging Face hub answers HTTP {status}; try again later")
    if isinstance(exc, OSError) and exc.errno is not None and not isinstance(exc, ConnectionError):
        return LoadFailed(
            f"cannot store {repo}: {exc.strerror or type(exc).__name__}; free some space or set DRIVETRAIN_HOME"
        )
    first_line = next(iter(str(exc).splitlines()), type(exc).__name__)
    reason = one_line(re.sub(r"\[Errno -?\d+\] ", "", first_line), 80)
    return LoadFailed(f"cannot fetch {repo}: the Hugging Face hub cannot be reached ({reason}); {OFFLINE_REMEDY}")


def _quiet(bar: type[Any]) -> type[Any]:
    """The library's own progress bar, switched off for this call only: the caller draws."""

    def start(self: Any, *args: Any, **options: Any) -> None:
        options["disable"] = True
        bar.__init__(self, *args, **options)

    return type("QuietBar", (bar,), {"__init__": start})


@contextmanager
def _reported(hub_id: HubId, wanted: list[RemoteFile], content: Path, progress: Progress) -> Iterator[None]:
    """Report how much lies on the disk, from a thread that ends with the block: the library has no plain callback."""
    total = sum(file.size_bytes or 0 for file in wanted)
    stopped = threading.Event()

    def watch() -> None:
        while not stopped.wait(POLL_S):
            done = min(folder_size(content), total)
            progress(
                f"downloading {hub_id.name} ({size_text(done)} of {size_text(total)})", done / total if total else None
            )

    watcher = threading.Thread(target=watch, name="drivetrain-pull-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stopped.set()
        watcher.join()


def _keep_only(content: Path, names: set[str]) -> None:
    """Drop the library's notes and what an earlier revision left."""
    for folder, _, files in os.walk(content, topdown=False):
        for file in files:
            path = Path(folder, file)
            if path.relative_to(content).as_posix() not in names:
                path.unlink()
        if Path(folder) != content and not any(Path(folder).iterdir()):
            Path(folder).rmdir()


def _check_files(hub_id: HubId, wanted: list[RemoteFile], content: Path, progress: Progress) -> tuple[FileRecord, ...]:
    """Every file is there, with the size and the sha256 that the hub gives for it."""
    records = []
    for number, file in enumerate(wanted):
        progress(f"checking {hub_id.name}", number / len(wanted))
        path = content / file.name
        if not path.is_file() or path.is_symlink():
            raise LoadFailed(f"{file.name} of {hub_id.repo} did not arrive; run it again")
        size_bytes, sha256 = path.stat().st_size, sha256_of(path)
        if (file.size_bytes is not None and size_bytes != file.size_bytes) or (file.sha256 or sha256) != sha256:
            path.unlink()
            raise LoadFailed(f"{file.name} of {hub_id.repo} arrived damaged and was deleted; run it again")
        records.append(FileRecord(file.name, size_bytes, sha256))
    return tuple(records)

"""Models of the Hugging Face hub, through `huggingface_hub`, which is imported only here and only when needed.

A model in the user's own Hugging Face cache is used in place; anything else is downloaded into the store.
"""

from __future__ import annotations

import glob
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from drivetrain.core.engine import Progress
from drivetrain.core.errors import DrivetrainError, LoadFailed, MissingExtra, ModelNotFound, one_line
from drivetrain.store.catalogue import HubModel
from drivetrain.store.digests import sha256_of
from drivetrain.store.display import OFFLINE_REMEDY
from drivetrain.store.display import size as size_text
from drivetrain.store.formats import ModelFiles, detect
from drivetrain.store.hub_files import SAFE_PATTERNS, RemoteFile, choose
from drivetrain.store.layout import folder_size, free_bytes, require_space
from drivetrain.store.manifest import FileRecord
from drivetrain.store.references import HubId

POLL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
    """The hub, and what tests replace. None: as `huggingface_hub` is configured."""

    endpoint: str | None = None
    cache_dir: Path | None = None
    timeout_s: float = 15.0
    free_bytes: Callable[[Path], int] = free_bytes

    def find_cached(self, hub_id: HubId) -> ModelFiles | None:
        """A complete snapshot in the user's Hugging Face cache. Does not use the network. Raises `MissingExtra`."""
        if hub_id.variant is not None:  # a cached folder does not say which GGUF file was asked for
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
        with suppress(LoadFailed):  # only a few of its files were ever fetched
            return detect(Path(snapshot))
        return None

    def fetch(self, hub_id: HubId, content: Path, progress: Progress) -> tuple[str, tuple[FileRecord, ...]]:
        """Fill `content` with the model's files, continuing what an earlier call left incomplete.

        Returns the commit and the files. Raises `LoadFailed`, `ModelNotFound` or `MissingExtra`; then `content` may
        be incomplete.
        """
        progress(f"looking for {hub_id.name}", None)
        commit, files = self._list_files(hub_id)
        wanted = choose(files, hub_id)
        return commit, self._download(hub_id.name, replace(hub_id, revision=commit), wanted, content, progress)

    def fetch_known(self, model: HubModel, content: Path, progress: Progress) -> tuple[FileRecord, ...]:
        """Fill `content` with a model of the catalogue, as `fetch` does. What is there must be what the catalogue has:
        a hub that says otherwise is refused before anything is downloaded, and a file that is otherwise afterwards.
        """
        hub_id = HubId(model.repo, model.revision)
        progress(f"looking for {model.name}", None)
        _, listed = self._list_files(hub_id)
        found = {file.name: file for file in listed}
        for file in model.files:
            if file.name not in found or found[file.name].sha256 not in (None, file.sha256):
                raise LoadFailed(
                    f"{model.name} is not fetched: {file.name} in {model.repo} is not, or no longer, the file "
                    "that this version of Drivetrain knows; if you trust what is there, run: "
                    f"drivetrain pull {model.unpinned}"
                )
        wanted = [RemoteFile(file.name, found[file.name].size_bytes, file.sha256) for file in model.files]
        return self._download(model.name, hub_id, wanted, content, progress)

    def _download(
        self, name: str, hub_id: HubId, wanted: list[RemoteFile], content: Path, progress: Progress
    ) -> tuple[FileRecord, ...]:
        """The files of one commit."""
        library = _library()
        missing_bytes = sum(file.size_bytes or 0 for file in wanted) - folder_size(content)
        require_space(name, missing_bytes, self.free_bytes(content))
        with _translated(hub_id), _reported(name, wanted, content, progress):
            library.snapshot_download(
                hub_id.repo,
                revision=hub_id.revision,
                local_dir=content,
                endpoint=self.endpoint,
                allow_patterns=[glob.escape(file.name) for file in wanted],
                tqdm_class=_quiet(library.utils.tqdm),
            )
        _keep_only(content, {file.name for file in wanted})
        return _check_files(name, hub_id, wanted, content, progress)

    def _list_files(self, hub_id: HubId) -> tuple[str, list[RemoteFile]]:
        """Not left to `snapshot_download`: without a network it takes a partly filled folder for complete."""
        library = _library()
        with _translated(hub_id):
            info = library.HfApi(endpoint=self.endpoint).model_info(
                hub_id.repo, revision=hub_id.revision, files_metadata=True, timeout=self.timeout_s
            )
        files = [
            RemoteFile(item.rfilename, item.size, item.lfs.sha256 if item.lfs is not None else None)
            for item in info.siblings or ()
        ]
        return str(info.sha), files


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
    """Turns the library's exceptions into ours."""
    try:
        yield
    except DrivetrainError:
        raise
    except foreign_errors() as exc:
        raise translate(exc, hub_id) from exc


def foreign_errors() -> tuple[type[BaseException], ...]:
    """Everything that a download by `huggingface_hub` raises. Some names exist only in some of its versions.

    `HTTPError` belongs to the HTTP library of that version.
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
    """One line with a remedy for anything that `huggingface_hub` raises."""
    from huggingface_hub import errors

    repo = hub_id.repo
    if isinstance(exc, errors.LocalEntryNotFoundError) and exc.__cause__ is not None:
        return translate(exc.__cause__, hub_id)  # not in the cache, and this is why not from the hub
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
    """The library's own progress bar, switched off for this call: the caller draws one."""

    def start(self: Any, *args: Any, **options: Any) -> None:
        options["disable"] = True
        bar.__init__(self, *args, **options)

    return type("QuietBar", (bar,), {"__init__": start})


@contextmanager
def _reported(name: str, wanted: list[RemoteFile], content: Path, progress: Progress) -> Iterator[None]:
    """Reports from a thread how many bytes are on the disk: the library has no callback for them."""
    total = sum(file.size_bytes or 0 for file in wanted)
    stopped = threading.Event()

    def watch() -> None:
        while not stopped.wait(POLL_S):
            done = min(folder_size(content), total)
            progress(f"downloading {name} ({size_text(done)} of {size_text(total)})", done / total if total else None)

    watcher = threading.Thread(target=watch, name="drivetrain-pull-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stopped.set()
        watcher.join()


def _keep_only(content: Path, names: set[str]) -> None:
    """Delete the library's own files and those of an earlier revision."""
    for folder, _, files in os.walk(content, topdown=False):
        for file in files:
            path = Path(folder, file)
            if path.relative_to(content).as_posix() not in names:
                path.unlink()
        if Path(folder) != content and not any(Path(folder).iterdir()):
            Path(folder).rmdir()


def _check_files(
    model: str, hub_id: HubId, wanted: list[RemoteFile], content: Path, progress: Progress
) -> tuple[FileRecord, ...]:
    """Raises `LoadFailed` unless every file has the size and the sha256 that are wanted."""
    records = []
    for number, file in enumerate(wanted):
        progress(f"checking {model}", number / len(wanted))
        path = content / file.name
        if not path.is_file() or path.is_symlink():
            raise LoadFailed(f"{file.name} of {hub_id.repo} did not arrive; run it again")
        size_bytes, sha256 = path.stat().st_size, sha256_of(path)
        if (file.size_bytes is not None and size_bytes != file.size_bytes) or (file.sha256 or sha256) != sha256:
            path.unlink()
            raise LoadFailed(f"{file.name} of {hub_id.repo} arrived damaged and was deleted; run it again")
        records.append(FileRecord(file.name, size_bytes, sha256))
    return tuple(records)

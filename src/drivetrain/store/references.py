"""What a user's MODEL means: a short name, a local path, a Hugging Face id or a URL. No file is opened for it."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import urlsplit

from drivetrain.core.errors import ModelNotFound
from drivetrain.store.catalogue import CATALOGUE, Catalogue, short_name
from drivetrain.store.display import quoted

MAX_CHARS = 4096

_OTHER_FORMS = "a local folder or .gguf file, a Hugging Face id (org/name), or a URL"

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_WINDOWS_DRIVE = re.compile(r"[A-Za-z]:[\\/]")
_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_HUB_ID = re.compile(
    rf"(?P<repo>{_PART}/{_PART})(?:@(?P<revision>[A-Za-z0-9][A-Za-z0-9._/-]{{0,199}}))?(?::(?P<variant>[A-Za-z0-9_-]{{1,32}}))?"
)


@dataclass(frozen=True, slots=True)
class ShortName:
    """A name of the catalogue. Those with the same text before a colon are of the same files."""

    name: str


@dataclass(frozen=True, slots=True)
class LocalPath:
    """A folder or file on this machine. `path` is absolute; a file that is a link keeps the link's name."""

    text: str
    path: Path

    @property
    def name(self) -> str:
        """What to call the model: the file's stem or the folder's name."""
        return (self.path.stem if self.path.suffix.lower() == ".gguf" else self.path.name) or "model"


@dataclass(frozen=True, slots=True)
class HubId:
    """`org/name[@revision][:variant]`; the variant chooses one GGUF file of several, as in `:Q4_K_M`."""

    repo: str
    revision: str | None = None
    variant: str | None = None

    @property
    def name(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        variant = f":{self.variant}" if self.variant else ""
        return f"{self.repo}{revision}{variant}"


@dataclass(frozen=True, slots=True)
class RemoteUrl:
    """A server that speaks the OpenAI protocol; only the remote engine can use it."""

    url: str

    @property
    def name(self) -> str:
        return urlsplit(self.url).hostname or "remote"


ModelReference = ShortName | LocalPath | HubId | RemoteUrl


def parse(text: str, catalogue: Catalogue = CATALOGUE) -> ModelReference:
    """What the text means, by its form and by what exists. Raises `ModelNotFound` for everything else."""
    _check_text(text)
    if _SCHEME.match(text):
        return _parse_url(text)
    if text in catalogue:
        return ShortName(text)
    if _looks_like_path(text):
        path = _existing(text)
        if path is None:
            raise ModelNotFound(f"no such folder or file: {quoted(text)}")
        return LocalPath(text, path)
    if (path := _existing(text)) is not None:
        return LocalPath(text, path)
    if (name := short_name(text, catalogue)) is not None:
        return ShortName(name)
    if (hub_id := _parse_hub_id(text)) is not None:
        return hub_id
    hint = suggestion(text, catalogue) or f"give a short name (drivetrain list --known), {_OTHER_FORMS}"
    raise ModelNotFound(f"no model is called {quoted(text)}; {hint}")


def suggestion(text: str, names: Collection[str]) -> str:
    """`did you mean …?` with the names that look like the text, or nothing if none does."""
    close = get_close_matches(text[:100], sorted(names), n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else ""


def _check_text(text: str) -> None:
    if not text or text.isspace():
        raise ModelNotFound(f"the model's name is empty; give a short name, {_OTHER_FORMS}")
    if len(text) > MAX_CHARS:
        raise ModelNotFound(f"the model's name has {len(text)} characters, more than {MAX_CHARS}: {quoted(text)}")
    if any(ord(char) < 32 or ord(char) == 127 or 0xD800 <= ord(char) <= 0xDFFF for char in text):
        raise ModelNotFound(
            f"the model's name contains characters that are not allowed in a name or path here: {quoted(text)}"
        )


def _parse_url(text: str) -> RemoteUrl:
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError as exc:
        raise ModelNotFound("the model's URL is malformed; it should look like http://host:port/v1") from exc
    if parts.scheme.lower() not in ("http", "https") or not host or any(char.isspace() for char in text):
        raise ModelNotFound("a model's URL must look like http://host:port/v1 or https://host/v1")
    if parts.username is not None or parts.password is not None:
        raise ModelNotFound("a model's URL must not hold a user name or key; give the key with its own setting")
    return RemoteUrl(text)


def _looks_like_path(text: str) -> bool:
    return (
        text in (".", "..", "~")
        or text.startswith(("./", "../", "/", "~", ".\\", "..\\", "\\"))
        or text.lower().rstrip("/").endswith(".gguf")
        or _WINDOWS_DRIVE.match(text) is not None
    )


def _existing(text: str) -> Path | None:
    """The absolute path, or None if nothing is there (or nothing that we may see)."""
    stripped = text.rstrip("/") or "/"
    try:
        path = Path(stripped).expanduser()
        if not path.exists():
            return None
        if path.is_dir():
            return path.resolve()
        # In a Hugging Face cache a file is a link to a blob without a suffix: keep the link's name.
        return path.parent.resolve() / path.name
    except (OSError, RuntimeError, ValueError):  # too long, a loop of links, not permitted; no such user's home
        return None


def _parse_hub_id(text: str) -> HubId | None:
    match = _HUB_ID.fullmatch(text)
    if match is None or ".." in text or "--" in match["repo"] or "//" in text or text.endswith(("/", ".git")):
        return None
    return HubId(match["repo"], match["revision"], match["variant"])


def folder_name(reference: ShortName | HubId) -> str:
    """The folder in the store: the reference's name without characters that file systems refuse.

    An id cannot contain `+` or `=`, nor its `org/name` part `--`, so two ids never share a folder.
    """
    if isinstance(reference, ShortName):
        return reference.name.partition(":")[0]
    revision = f"@{reference.revision.replace('/', '+')}" if reference.revision else ""
    variant = f"={reference.variant}" if reference.variant else ""
    return f"{reference.repo.replace('/', '--')}{revision}{variant}"

"""Which GGUF file holds a model's vision part: the one that is named, else the only one beside the model that fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drivetrain.core.errors import InvalidSetting
from drivetrain.engines.llamacpp.gguf import as_text, read_metadata

BATCH = 512
"""Some models look at a whole image in one step, so a step must hold one: as many tokens as llama.cpp's own default."""


@dataclass(frozen=True, slots=True)
class VisionPart:
    """`path` None: there is none. `notes` say why one that is there was not taken."""

    path: Path | None = None
    notes: tuple[str, ...] = ()


def find(setting: str | None, model: Path, embedding: object) -> VisionPart:
    """`embedding` is the width of the text model. Raises `InvalidSetting` or `LoadFailed`."""
    if setting is not None:
        return VisionPart(_named(setting))
    beside = sorted(path for path in model.parent.glob("*.gguf") if "mmproj" in path.name.lower() and path != model)
    if not beside:
        return VisionPart()
    if len(beside) > 1:
        return _not_taken(f"{len(beside)} mmproj files lie beside the model")
    metadata = read_metadata(beside[0])
    if not _sees(metadata):
        return _not_taken(f"{beside[0].name} beside the model is no vision part")
    if metadata.get("clip.vision.projection_dim", embedding) != embedding:
        return _not_taken(f"{beside[0].name} beside the model was made for another one")
    return VisionPart(beside[0])


def _named(setting: str) -> Path:
    path = Path(setting).expanduser()
    if not path.is_file():
        raise InvalidSetting(f"mmproj names {path.name}, which is no file", param="mmproj")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise InvalidSetting(f"mmproj names {path.name}, which is no GGUF file", param="mmproj")
    if not _sees(read_metadata(path)):
        raise InvalidSetting(f"mmproj names {path.name}, a GGUF file that holds no vision part", param="mmproj")
    return path.absolute()


def _sees(metadata: Mapping[str, Any]) -> bool:
    return as_text(metadata.get("general.architecture")) == "clip" and bool(metadata.get("clip.has_vision_encoder"))


def _not_taken(why: str) -> VisionPart:
    return VisionPart(None, (f"{why}, so images are refused; name the right file with the setting mmproj",))

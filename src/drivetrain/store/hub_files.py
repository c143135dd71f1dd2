"""Which files of a Hugging Face repository are fetched: weights in one safe form and what describes them. No code."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from drivetrain.core.errors import LoadFailed, ModelNotFound
from drivetrain.store.references import HubId

SAFE_PATTERNS = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
"""For snapshots in the Hugging Face cache. Their GGUF files were chosen by whoever fetched them."""

_DESCRIPTIONS = re.compile(r"(?:additional_chat_templates/)?[\w.-]+\.(?:json|jinja|txt|model|tiktoken)")
_SAFETENSORS = re.compile(r"[\w.-]+\.safetensors")
_GGUF = re.compile(r"[\w.-]+\.gguf", re.IGNORECASE)
_GGUF_SHARD = re.compile(r".+-\d{5}-of-\d{5}\.gguf", re.IGNORECASE)
_PREFERRED = ("Q4_K_M", "Q8_0", "Q4_0", "Q4_1", "Q5_K_M", "Q6_K", "BF16", "F16")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository. The hub gives the sha256 of large ones only."""

    name: str
    size_bytes: int | None
    sha256: str | None


def choose(files: Iterable[RemoteFile], hub_id: HubId) -> list[RemoteFile]:
    """What to fetch. Raises `LoadFailed` if it has no weights that we read, `ModelNotFound` for a wrong variant."""
    by_name = {file.name: file for file in files}
    descriptions = [name for name in by_name if _DESCRIPTIONS.fullmatch(name)]
    safetensors = [name for name in by_name if _SAFETENSORS.fullmatch(name)]
    ggufs = [name for name in by_name if _GGUF.fullmatch(name)]
    if safetensors and hub_id.variant is None:
        chosen = descriptions + _standard_form(safetensors)
    elif ggufs:
        chosen = [_choose_gguf(ggufs, hub_id)]
    elif hub_id.variant is not None:
        raise ModelNotFound(f"{hub_id.repo} has no GGUF files, so leave out :{hub_id.variant}")
    else:
        raise LoadFailed(
            f"{hub_id.repo} has no safetensors or GGUF weights; only these are read, since pickled weights can run code"
        )
    return [by_name[name] for name in sorted(chosen)]


def _standard_form(safetensors: Collection[str]) -> list[str]:
    """Some repositories hold the same weights twice, once in the vendor's own form (`consolidated…`)."""
    standard = [name for name in safetensors if name.startswith("model")]
    return standard or list(safetensors)


def _choose_gguf(ggufs: Collection[str], hub_id: HubId) -> str:
    models = sorted(name for name in ggufs if "mmproj" not in name.lower() and not _GGUF_SHARD.fullmatch(name))
    wanted = (hub_id.variant,) if hub_id.variant is not None else _PREFERRED
    for variant in wanted:
        ending = re.compile(rf"(?:.*[.-])?{re.escape(variant)}\.gguf", re.IGNORECASE)
        for name in models:
            if ending.fullmatch(name):
                return name
    if hub_id.variant is None and len(models) == 1:
        return models[0]
    offered = ", ".join(models[:8]) or "only split files"
    raise ModelNotFound(f"{hub_id.repo} has several GGUF files; choose one by {hub_id.repo}:VARIANT (there: {offered})")

"""What a model's files say before any weight is read, as the transformers library reads them.

`cli/stated.py` is its stand-in where that library is not installed.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drivetrain.core.capabilities import Capabilities
from drivetrain.core.engine import EngineInfo, Progress, WeightsFormat
from drivetrain.core.parameters import ENGINE_PARAMETERS, TOKEN_PARAMETERS, WORKER_PARAMETERS
from drivetrain.core.tokenizer import Tokenizer
from drivetrain.engines.transformers import errors, loading
from drivetrain.store.models import LocalModel
from drivetrain.worker.settings import Settings

EXTRA = "transformers"
INSTALL = f"pip install 'drivetrain[{EXTRA}]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peek:
    """`missing` says in words what could not be told, and what to do about it."""

    tokenizer: Tokenizer
    architecture: str
    capabilities: Capabilities | None
    context_length: int | None
    eos_ids: frozenset[int]
    default_sampling: Mapping[str, Any]
    missing: tuple[str, ...] = ()


def from_info(info: EngineInfo) -> Peek:
    """Of a model that is loaded already, as one without weights may be."""
    return Peek(
        tokenizer=info.tokenizer,
        architecture=info.architecture,
        capabilities=info.capabilities,
        context_length=info.capabilities.context_length,
        eos_ids=info.eos_ids,
        default_sampling=info.default_sampling,
    )


def library_installed() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("transformers", "torch"))


def by_library(found: LocalModel, folder: Path | None, settings: Settings, progress: Progress) -> Peek:
    """As the transformers engine will see it. Raises what its loading would raise.

    `folder` is None for a GGUF file that was not converted yet; its tokenizer then takes some seconds.
    """
    try:
        return _by_library(found, folder, settings, progress)
    except Exception as exc:
        raise errors.while_loading(exc) from exc


def _by_library(found: LocalModel, folder: Path | None, settings: Settings, progress: Progress) -> Peek:
    from drivetrain.engines.transformers.quiet import quiet_library

    progress("reading the configuration", None)
    hf: Any = importlib.import_module("transformers")
    where: dict[str, Any] = {"local_files_only": True, "trust_remote_code": bool(settings.trust_remote_code)}
    if folder is None:
        folder, where = found.path.parent, {**where, "gguf_file": found.path.name}
    with quiet_library():
        config = hf.AutoConfig.from_pretrained(folder, **where)
        kind = loading.kind_of(config)
        progress("reading the tokenizer", None)
        processor = hf.AutoProcessor.from_pretrained(folder, **where) if kind is loading.Kind.VISION else None
        tokenizer = processor.tokenizer if processor is not None else hf.AutoTokenizer.from_pretrained(folder, **where)
        structure = _structure(hf, folder, config, stated=found.format is not WeightsFormat.GGUF)
    return _describe(config, kind, processor, tokenizer, structure, settings)


def _structure(hf: Any, folder: Path, config: Any, *, stated: bool) -> Any:
    if stated and (folder / "generation_config.json").is_file():
        return hf.GenerationConfig.from_pretrained(folder, local_files_only=True)
    return hf.GenerationConfig.from_model_config(config)


def _describe(
    config: Any, kind: loading.Kind, processor: Any, tokenizer: Any, structure: Any, settings: Settings
) -> Peek:
    from drivetrain.text.hf_tokenizer import HfTokenizer

    template = getattr(processor, "chat_template", None)
    context_length = loading.context_length(config, tokenizer, settings.context_length)
    return Peek(
        tokenizer=HfTokenizer(tokenizer, chat_template=template if isinstance(template, str) else None),
        architecture=config.model_type,
        capabilities=capabilities_of(kind, context_length, settings),
        context_length=context_length,
        eos_ids=loading.eos_ids(structure, config, tokenizer),
        default_sampling=loading.stated_sampling(structure),
    )


def capabilities_of(kind: loading.Kind, context_length: int, settings: Settings) -> Capabilities:
    """What the transformers engine will declare for a model of this kind."""
    refused = {"images"} if kind is not loading.Kind.VISION else set()
    if kind is loading.Kind.SEQ2SEQ:
        refused.add("prompt_logprobs")
    return Capabilities(
        parameters=WORKER_PARAMETERS | TOKEN_PARAMETERS | (ENGINE_PARAMETERS - refused),
        vision=kind is loading.Kind.VISION,
        embeddings=kind in (loading.Kind.CAUSAL, loading.Kind.ENCODER),
        generation=kind is not loading.Kind.ENCODER,
        context_length=context_length,
        limits=settings.limits,
    )

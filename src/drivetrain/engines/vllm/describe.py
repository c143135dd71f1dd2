"""What the engine declares of a model: once it is loaded, and from its files before. No weights are read here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drivetrain.core.engine import Description, EngineInfo, ModelSpec, Progress
from drivetrain.core.errors import LoadFailed
from drivetrain.engines.checkpoint import declared
from drivetrain.engines.checkpoint.folder import CheckpointFolder
from drivetrain.engines.checkpoint.kinds import ModelKind, StatedConfig, kind_of, stated_kind
from drivetrain.engines.checkpoint.quiet import quiet_library
from drivetrain.engines.vllm import errors
from drivetrain.engines.vllm.capabilities import ALWAYS, NEEDS, capabilities_of, refuse_unless_text
from drivetrain.engines.vllm.core import VllmModel
from drivetrain.engines.vllm.options import engine_arguments
from drivetrain.engines.vllm.settings import VllmSettings

_NOT_DONE = tuple(name for name in declared.SAMPLING if name not in NEEDS)


@dataclass(frozen=True, slots=True)
class Files:
    """Configuration, tokenizer and generation_config of a folder, or of a GGUF file that was not converted yet."""

    config: Any
    kind: ModelKind
    tokenizer: Any
    structure: Any
    chat_template: str | None

    @property
    def eos_ids(self) -> frozenset[int]:
        return declared.eos_ids(self.structure, self.config, self.tokenizer)


def read(folder: CheckpointFolder) -> Files:
    with quiet_library():
        config, kind = _config(folder)
        refuse_unless_text(kind)
        tokenizer = folder.tokenizer()
        tokenizer.model_max_length = min(tokenizer.model_max_length, declared.NO_LIMIT)
        structure = folder.generation_config(config)
    template = _stated(folder.path, "chat_template.json").get("chat_template") if kind is ModelKind.VISION else None
    return Files(config, kind, tokenizer, structure, template)


def _config(folder: CheckpointFolder) -> tuple[Any, ModelKind]:
    """vLLM has classes of which the library knows nothing: of those, what the JSON says."""
    from transformers import CONFIG_MAPPING

    stated = _stated(folder.path, "config.json")
    if folder.gguf_file is not None or "auto_map" in stated or stated.get("model_type") in CONFIG_MAPPING:
        config = folder.config()
        return config, kind_of(config)
    if "model_type" not in stated:
        raise LoadFailed("config.json is missing, or names no model_type; pull or copy the model again")
    seeing = "vision_config" in stated  # also where the class is named like one for text, as DeepSeek-VL2's is
    return StatedConfig(stated), ModelKind.VISION if seeing else stated_kind(stated)


def _stated(folder: Path, name: str) -> dict[str, Any]:
    try:
        found = json.loads((folder / name).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def of_loaded(files: Files, loaded: VllmModel, max_batch: int) -> EngineInfo:
    import torch
    import transformers

    if missing := sorted(ALWAYS - loaded.parameters):
        raise LoadFailed(
            f"vLLM {loaded.version} lacks the sampling parameters {', '.join(missing)}; install a newer one"
        )
    capabilities = capabilities_of(loaded.context_length, max_batch, loaded.parameters, images=loaded.images)
    return EngineInfo(
        engine="vllm",
        capabilities=capabilities,
        tokenizer=_tokenizer(files),
        eos_ids=files.eos_ids,
        vocab_size=loaded.vocab_size,
        architecture=files.config.model_type,
        device=loaded.device,
        dtype=loaded.dtype,
        default_sampling=declared.stated_sampling(files.structure, capabilities.parameters),
        notes=declared.not_honoured(files.structure, _NOT_DONE),
        versions={"vllm": loaded.version, "torch": torch.__version__, "transformers": transformers.__version__},
    )


def of_files(spec: ModelSpec, progress: Progress) -> Description:
    """Reads configuration and tokenizer; no weights. Raises what loading would raise of these."""
    try:
        return _of_files(spec, progress)
    except Exception as exc:
        raise errors.while_loading(exc) from exc


def _of_files(spec: ModelSpec, progress: Progress) -> Description:
    engine_arguments(spec.options)
    settings = VllmSettings.of(spec.options)
    progress("reading configuration and tokenizer", None)
    files = read(CheckpointFolder.before_loading(spec, trust_remote_code=settings.trust_remote_code))
    context_length = declared.context_length(files.config, files.tokenizer, settings.context_length)
    return Description(
        tokenizer=_tokenizer(files),
        architecture=files.config.model_type,
        capabilities=capabilities_of(context_length, settings.max_batch, images=files.kind is ModelKind.VISION),
        context_length=context_length,
        eos_ids=files.eos_ids,
        default_sampling=declared.stated_sampling(files.structure, NEEDS),
        missing=(
            *declared.not_honoured(files.structure, _NOT_DONE),
            "whether this vLLM has the model's class and every parameter is seen when it is loaded",
        ),
    )


def _tokenizer(files: Files) -> Any:
    from drivetrain.text.hf_tokenizer import HfTokenizer

    return HfTokenizer(files.tokenizer, chat_template=files.chat_template)

"""From a folder of weights to a model in memory: which class, which device, which dtype, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from drivetrain.core.engine import ModelSpec, Progress
from drivetrain.core.errors import LoadFailed
from drivetrain.engines.base.error_text import one_line
from drivetrain.engines.base.settings import Pooling
from drivetrain.engines.checkpoint import declared, errors
from drivetrain.engines.checkpoint.devices import pick_device, pick_dtype
from drivetrain.engines.checkpoint.folder import CheckpointFolder
from drivetrain.engines.checkpoint.gguf import safetensors_folder
from drivetrain.engines.checkpoint.kinds import ModelKind, kind_of
from drivetrain.engines.checkpoint.pooling import stated_pooling
from drivetrain.engines.checkpoint.quantized import Quantization
from drivetrain.engines.checkpoint.quiet import quiet_library
from drivetrain.engines.checkpoint.settings import CheckpointSettings


@dataclass(slots=True)
class TransformersModel:
    """A model ready to run. `structure` is its generation_config as it came; the model's own one is neutral."""

    model: Any
    tokenizer: Any
    processor: Any
    kind: ModelKind
    structure: Any
    context_length: int
    eos_ids: frozenset[int]
    pooling: Pooling
    notes: tuple[str, ...]


def load(spec: ModelSpec, progress: Progress) -> TransformersModel:
    settings = CheckpointSettings.of(spec.options)
    path = safetensors_folder(spec, progress, engine="transformers")
    progress("reading the configuration", None)
    with quiet_library():
        return _load(CheckpointFolder(path=path, trust_remote_code=settings.trust_remote_code), settings, progress)


def _load(folder: CheckpointFolder, settings: CheckpointSettings, progress: Progress) -> TransformersModel:
    import transformers as hf

    config = folder.config()
    kind = kind_of(config)
    device = pick_device(settings.device)
    dtype = pick_dtype(settings.dtype, config, device)
    progress("loading the tokenizer", None)
    processor = folder.processor() if kind is ModelKind.VISION else None
    tokenizer = processor.tokenizer if processor is not None else folder.tokenizer()
    progress("loading the weights", None)
    if kind is ModelKind.SCORER and config.num_labels != 1:
        raise LoadFailed(f"the model sorts texts into {config.num_labels} classes; only a head with one number scores")
    unused = "pooler" if kind is ModelKind.ENCODER else None  # no loss
    model = folder.model(_model_class(kind), config, dtype, may_lack=unused)
    progress(f"moving the weights to {device}", None)
    model = model.to(device).eval()
    if (quantization := folder.quantization()) is not None:
        progress("checking that the quantized weights compute", None)
        _try(model, kind, quantization)
    limit = declared.context_length(config, tokenizer, settings.context_length)
    # What is too long is refused by us; the library would print a warning.
    tokenizer.model_max_length = declared.NO_LIMIT
    structure = model.generation_config if model.can_generate() else hf.GenerationConfig()
    if model.can_generate():
        model.generation_config = _neutral(structure)
    return TransformersModel(
        model=model,
        tokenizer=tokenizer,
        processor=processor,
        kind=kind,
        structure=structure,
        context_length=limit,
        eos_ids=declared.eos_ids(structure, config, tokenizer),
        pooling=settings.pooling or stated_pooling(folder.path),
        notes=folder.notes(),
    )


def _try(model: Any, kind: ModelKind, quantization: Quantization) -> None:
    """One pass: what a package for quantized weights cannot do on this device, it says only when it computes."""
    import torch

    ids = torch.zeros(1, 2, dtype=torch.long, device=model.device)
    more = {"decoder_input_ids": ids} if kind is ModelKind.SEQ2SEQ else {}
    try:
        with torch.inference_mode():
            model(input_ids=ids, **more)
    except Exception as exc:
        if errors.is_out_of_memory(exc) or errors.is_device_lost(exc):
            raise
        raise LoadFailed(
            f"the weights are quantized ({quantization.in_words}), and cannot be computed with on {model.device.type}"
            f" ({one_line(exc)}); try another device, or the model in another form"
        ) from exc


def _neutral(structure: Any) -> Any:
    """Ids and cache kind only: all sampling is ours, and `generate()` fills in what its config does not say."""
    from transformers import GenerationConfig

    return GenerationConfig(
        bos_token_id=structure.bos_token_id,
        pad_token_id=structure.pad_token_id,
        decoder_start_token_id=structure.decoder_start_token_id,
        cache_implementation=structure.cache_implementation,
    )


def _model_class(kind: ModelKind) -> Any:
    import transformers as hf

    return {
        ModelKind.CAUSAL: hf.AutoModelForCausalLM,
        ModelKind.SEQ2SEQ: hf.AutoModelForSeq2SeqLM,
        ModelKind.VISION: hf.AutoModelForImageTextToText,
        ModelKind.ENCODER: hf.AutoModel,
        ModelKind.SCORER: hf.AutoModelForSequenceClassification,
    }[kind]

"""From a folder of weights to a model in memory with our attention in it: which class, device and dtype."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drivetrain.core.engine import ModelSpec, Progress
from drivetrain.engines.checkpoint import declared
from drivetrain.engines.checkpoint.devices import pick_device, pick_dtype
from drivetrain.engines.checkpoint.folder import CheckpointFolder
from drivetrain.engines.checkpoint.gguf import safetensors_folder
from drivetrain.engines.checkpoint.quantized import Quantization
from drivetrain.engines.checkpoint.quiet import quiet_library
from drivetrain.engines.native.attention import layers as attention
from drivetrain.engines.native.attention.backend import Layer
from drivetrain.engines.native.cpu.fusing import fuse_projections
from drivetrain.engines.native.cpu.int8 import check_machine
from drivetrain.engines.native.cpu.weight_layout import pack_linear_layers
from drivetrain.engines.native.kv.cache import LayerShape
from drivetrain.engines.native.kv.groups import Window
from drivetrain.engines.native.model import compiling, probe
from drivetrain.engines.native.model.supported import check_config
from drivetrain.engines.native.settings import Compile, NativeSettings, Quantize


@dataclass(slots=True)
class NativeModel:
    """A model that leaves its attention to `stage`. `structure` is its generation_config as it came."""

    model: Any
    tokenizer: Any
    stage: attention.AttentionStage
    path: Path
    layers: dict[int, Layer]
    num_quantized: int | None
    """Linear layers with weights of 8 bits; None: that was not asked for."""
    num_weights: int
    """With which every token is multiplied: without the embeddings, and without the head, which few tokens reach."""
    structure: Any
    context_length: int
    """Of the model, or what the setting says; memory may allow less."""
    eos_ids: frozenset[int]
    quantization: Quantization | None
    """Of the weights as they came."""
    notes: tuple[str, ...]

    @property
    def shapes(self) -> dict[int, LayerShape]:
        return {number: layer.shape for number, layer in self.layers.items()}

    @property
    def windows(self) -> dict[int, Window]:
        """One that no text is longer than is none."""
        found = {number: layer.spec.window for number, layer in self.layers.items()}
        return {number: size if size and size < self.context_length else None for number, size in found.items()}


def load(spec: ModelSpec, settings: NativeSettings, progress: Progress) -> NativeModel:
    path = safetensors_folder(spec, progress, engine="native")
    progress("reading the configuration", None)
    with quiet_library():
        return _load(CheckpointFolder(path=path, trust_remote_code=settings.trust_remote_code), settings, progress)


def _load(folder: CheckpointFolder, settings: NativeSettings, progress: Progress) -> NativeModel:
    import torch
    import transformers as hf

    config = folder.config()
    check_config(config)
    probe.check_named_class(config)
    device = pick_device(settings.device)
    dtype = pick_dtype(settings.dtype, config, device)
    quantized = settings.quantize is not Quantize.NONE
    if quantized:
        check_machine(device, dtype)
    if settings.compile is Compile.ON and (why := compiling.obstacle(device)):
        raise compiling.refused(why)
    progress("loading the tokenizer", None)
    tokenizer = folder.tokenizer()
    progress("loading the weights", None)
    model = folder.model(hf.AutoModelForCausalLM, config, dtype)
    quantization = folder.quantization()
    with probe.translated(quantization):
        probe.check_class(type(model))
        progress(f"moving the weights to {device}", None)
        model = model.to(device).eval().requires_grad_(False)
        num_weights = _num_weights(model)
        fuse_projections(model)
        num_packed = pack_linear_layers(model, quantize=settings.quantize)
        attention.register()
        stage = attention.install(model)
        with torch.inference_mode():
            layers = probe.probe(model, stage)
    limit = declared.context_length(config, tokenizer, settings.context_length)
    # What is too long is refused by us; the library would print a warning.
    tokenizer.model_max_length = declared.NO_LIMIT
    structure = model.generation_config if model.can_generate() else hf.GenerationConfig()
    return NativeModel(
        model=model,
        tokenizer=tokenizer,
        stage=stage,
        path=folder.path,
        layers=layers,
        num_quantized=num_packed if quantized else None,
        num_weights=num_weights,
        structure=structure,
        context_length=limit,
        eos_ids=declared.eos_ids(structure, config, tokenizer),
        quantization=quantization,
        notes=folder.notes(),
    )


def _num_weights(model: Any) -> int:
    tables = (model.get_input_embeddings(), model.get_output_embeddings())
    apart = {id(table.weight) for table in tables if table is not None}
    return sum(weight.numel() for weight in model.parameters() if id(weight) not in apart)

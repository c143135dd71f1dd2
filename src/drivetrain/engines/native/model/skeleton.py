"""A model without its weights, to be traced: of the same modules as the one that `loading.py` makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from drivetrain.engines.checkpoint.folder import CheckpointFolder
from drivetrain.engines.checkpoint.quiet import quiet_library
from drivetrain.engines.native.attention import layers as attention
from drivetrain.engines.native.attention.operators import Operands
from drivetrain.engines.native.cpu import weight_layout
from drivetrain.engines.native.cpu.fusing import fuse_projections
from drivetrain.engines.native.model.recipe import Recipe
from drivetrain.engines.native.model.tracing import name_operands


def skeleton(recipe: Recipe) -> tuple[Any, Operands]:
    import transformers as hf

    with quiet_library():
        config = CheckpointFolder(path=Path(recipe.path), trust_remote_code=recipe.trust_remote_code).config()
        with torch.device("meta"):
            model = hf.AutoModelForCausalLM.from_config(
                config, dtype=getattr(torch, recipe.dtype), trust_remote_code=recipe.trust_remote_code
            )
    model = model.eval().requires_grad_(False)
    fuse_projections(model)
    _give_memory(model, but_for_packed=recipe.with_products)
    if recipe.with_products:
        weight_layout.pack_linear_layers(model, only_traced=True)
    attention.register()
    stage = attention.install(model)
    model.set_attn_implementation(attention.NAME)
    return model, name_operands(model, stage)


def _give_memory(model: Any, *, but_for_packed: bool) -> None:
    """Tensors of the CPU in place of those without a device. Nobody writes to them, so they take up none.

    Weights that are packed next can do without: they are never an input of a program.
    """
    shared = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    made: dict[int, Any] = {}
    for module in model.modules():
        weight = weight_layout.weight_of(module)
        packed = (
            but_for_packed and weight is not None and weight_layout.fits(weight) and id(module.weight) not in shared
        )
        for name, old in module._parameters.items():
            if old is not None and not (packed and name == "weight"):
                new = torch.nn.Parameter(torch.empty_like(old, device="cpu"), requires_grad=False)
                module._parameters[name] = made.setdefault(id(old), new)
        for name, old in module._buffers.items():
            if old is not None and old.is_meta:
                module._buffers[name] = made.setdefault(id(old), torch.empty_like(old, device="cpu"))

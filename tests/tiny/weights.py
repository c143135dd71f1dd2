"""Random weights that behave: every builder makes its model, fills it and saves it through here."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Builder = Callable[[Path], None]
"""Writes one whole checkpoint into a folder that exists and is empty."""

LAST_NORMS = ("norm", "ln_f", "final_layer_norm")


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and no advice from the library while a checkpoint is built."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def save(
    folder: Path,
    auto_class: str,
    config: Any,
    *,
    generation: dict[str, Any] | None = None,
    mute: Sequence[int] = (),
    gain: float = 1.5,
    embedding: float = 0.5,
    sharpen: float = 1.0,
) -> None:
    """Make the model that this auto class has for the config, and save it with its generation config.

    `mute` are ids that must never win: their rows of an untied output head become zero.
    """
    import torch
    import transformers

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = getattr(transformers, auto_class).from_config(config)
    model.eval()
    fill(model, seed=zlib.crc32(type(config).model_type.encode()), gain=gain, embedding=embedding, sharpen=sharpen)
    head = model.get_output_embeddings() if mute else None
    if head is not None:
        if head.weight is model.get_input_embeddings().weight:
            raise ValueError(f"{type(model).__name__}: the head is tied, so no id can be muted")
        with torch.no_grad():
            head.weight[list(mute)] = 0.0
    if generation is not None:
        model.generation_config = transformers.GenerationConfig(**generation)
    model.save_pretrained(folder)


def fill(model: Any, *, seed: int, gain: float, embedding: float, sharpen: float) -> None:
    """Give every parameter a value of a size that keeps the layers talking, so that the output varies.

    Library initialisation is so small that a model without training repeats one token whatever the prompt. So does one
    whose embeddings outweigh its layers when the head is tied to them: then `embedding` is small, and `sharpen` scales
    the last norm to make up for it.
    """
    import torch
    from transformers.pytorch_utils import Conv1D

    generator = torch.Generator().manual_seed(seed)
    tables = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    turned = {id(m.weight) for m in model.modules() if isinstance(m, Conv1D)}
    for name, parameter in model.named_parameters():  # each tied weight once, in the order of the modules
        noise = torch.randn(parameter.shape, generator=generator)
        with torch.no_grad():
            if name.endswith("bias") or parameter.dim() == 0:
                parameter.add_(0.02 * noise)
            elif parameter.dim() == 1:
                parameter.add_(0.1 * noise)  # norms stay near 1, or near 0 where the library adds the 1
                if name.endswith("word_embeddings_layernorm.weight"):  # Bloom's undoes the size of the embeddings
                    parameter.mul_(embedding)
            elif id(parameter) in tables:
                parameter.copy_(embedding * noise)
            else:
                inputs = [0] if id(parameter) in turned else list(range(1, parameter.dim()))
                if parameter.dim() == 3:  # a stack of experts
                    inputs = [2]
                # Without a mean, for activations have one, and would push every output the same way.
                noise -= noise.mean(dim=inputs, keepdim=True)
                parameter.copy_(gain * noise / math.sqrt(math.prod(parameter.shape[i] for i in inputs)))
    if sharpen != 1.0:
        offset = 1.0 if "Gemma" in type(model).__name__ else 0.0
        decoder = model.get_decoder()
        last = next(getattr(decoder, name) for name in LAST_NORMS if hasattr(decoder, name)).weight
        with torch.no_grad():
            last.copy_((last + offset) * sharpen - offset)

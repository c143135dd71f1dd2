"""Converts a GGUF file to a safetensors folder, once, with the values exactly as they dequantize."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from drivetrain.core.engine import ModelSpec, Progress, WeightsFormat
from drivetrain.core.errors import LoadFailed
from drivetrain.engines.checkpoint import errors
from drivetrain.engines.checkpoint.quiet import quiet_library


def safetensors_folder(spec: ModelSpec, progress: Progress, *, engine: str) -> Path:
    """The folder that the library loads, converted from a GGUF file if necessary."""
    if spec.format is not WeightsFormat.GGUF:
        return spec.path
    if spec.derived is None:
        raise LoadFailed(f"the {engine} engine needs a place to keep what it makes of a GGUF file")
    return spec.derived.make("safetensors", lambda target: convert(spec.path, target, progress), progress)


def safetensors_made(spec: ModelSpec) -> Path | None:
    """The same folder, if it exists already."""
    if spec.format is not WeightsFormat.GGUF:
        return spec.path
    return spec.derived.find("safetensors") if spec.derived is not None else None


def convert(source: Path, target: Path, progress: Progress) -> None:
    """Fill `target`. The weights are kept in float32, so that no engine reads rounded ones."""
    import torch
    import transformers as hf

    if not source.is_file():
        raise LoadFailed("the GGUF file is gone")
    folder, name = str(source.parent), source.name
    with quiet_library(), _reporting(progress):
        progress("converting the GGUF tokenizer (once, some seconds)", 0.0)
        tokenizer = hf.AutoTokenizer.from_pretrained(folder, gguf_file=name, local_files_only=True)
        progress("converting the GGUF weights (once, some seconds)", 0.3)
        model = hf.AutoModelForCausalLM.from_pretrained(
            folder,
            gguf_file=name,
            quantization_config=hf.GgufConfig(dequantize=True),
            dtype=torch.float32,
            local_files_only=True,
        )
        progress("writing the safetensors copy", 0.8)
        with _system_errors():
            model.save_pretrained(target)
            tokenizer.save_pretrained(target)
    progress("converted", 1.0)


@contextmanager
def _system_errors() -> Iterator[None]:
    """What the system says of the disk, which safetensors and tokenizers wrap in errors of their own."""
    try:
        yield
    except OSError:
        raise
    except Exception as exc:
        if (number := errors.os_error_number(exc)) is None:
            raise
        raise OSError(number, os.strerror(number)) from exc


@contextmanager
def _reporting(progress: Progress) -> Iterator[None]:
    """The library draws its own bar over the tensors, which no setting turns off: report to ours instead."""
    from transformers import modeling_gguf_pytorch_utils as library

    def counted(items: Sequence[Any], **_: Any) -> Iterator[Any]:
        for i, item in enumerate(items):
            progress("converting the GGUF weights (once, some seconds)", 0.3 + 0.5 * i / len(items))
            yield item

    bar = library.tqdm
    library.tqdm = counted
    try:
        yield
    finally:
        library.tqdm = bar

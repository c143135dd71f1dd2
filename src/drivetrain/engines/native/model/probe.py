"""Whether a model can run here at all, judged by its class and by one short pass through its layers."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from drivetrain.core.errors import DrivetrainError, UnfitEngine
from drivetrain.engines.base.error_text import one_line
from drivetrain.engines.checkpoint import errors
from drivetrain.engines.checkpoint.quantized import Quantization
from drivetrain.engines.native.attention.backend import Layer
from drivetrain.engines.native.attention.layers import NAME, AttentionStage, UnfitModel
from drivetrain.engines.native.model.supported import unfit


def check_named_class(config: Any) -> None:
    """`check_class` before any weight is read, where the configuration names a class of the library."""
    import transformers

    named = getattr(config, "architectures", None)
    if named and (cls := getattr(transformers, named[0], None)) is not None:
        check_class(cls)


def check_class(cls: Any) -> None:
    """The class must leave its attention and its positions to its caller. `supported.py` names some that do not."""
    name = cls.__name__
    if not getattr(cls, "_supports_attention_backend", False):
        raise unfit(f"the class {name} does its attention by itself")
    parameters = inspect.signature(cls.forward).parameters
    for needed in ("position_ids", "logits_to_keep"):
        if needed not in parameters:
            raise unfit(f"the class {name} takes no {needed}")


def probe(model: Any, stage: AttentionStage) -> dict[int, Layer]:
    """What each layer keeps and how it attends, seen in one pass over two ids."""
    import torch

    ids = torch.zeros(1, 2, dtype=torch.long, device=model.device)
    stage.layers.clear()
    with translated():
        model.set_attn_implementation(NAME)
        model(
            input_ids=ids,
            position_ids=torch.arange(2, device=model.device)[None],
            attention_mask=torch.ones(1, 2, dtype=torch.bool, device=model.device),
            use_cache=False,
        )
    layers = int(model.config.get_text_config().num_hidden_layers)
    if len(stage.layers) != layers:
        raise unfit(f"only {len(stage.layers)} of its {layers} layers attend as we know it")
    return dict(stage.layers)


@contextmanager
def translated(quantization: Quantization | None = None) -> Iterator[None]:
    """Turn what a class raises when it is run our way into a refusal: by itself it may work.

    `quantization`, if the weights have one, is named as the likely reason.
    """
    try:
        yield
    except UnfitModel as exc:
        raise unfit(_because(quantization, str(exc))) from exc
    except UnfitEngine as exc:
        if quantization is None:
            raise
        raise unfit(_because(quantization, exc.why)) from exc
    except (DrivetrainError, OSError):
        raise
    except Exception as exc:
        if quantization is None and isinstance(exc, (ImportError, AssertionError)):
            raise
        if errors.is_out_of_memory(exc) or errors.is_device_lost(exc):
            raise
        raise unfit(_because(quantization, f"its class fails in a batch ({one_line(exc)})")) from exc


def _because(quantization: Quantization | None, why: str) -> str:
    return why if quantization is None else f"its weights are quantized ({quantization.in_words}), and {why}"

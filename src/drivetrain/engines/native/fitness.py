"""Whether a model can run here at all, judged from its configuration, its class, and one short look at its layers."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from drivetrain.core.errors import LoadFailed
from drivetrain.engines.checkpoint import errors
from drivetrain.engines.native.attention import NAME, Stage, UnfitModel
from drivetrain.engines.native.cache import LayerShape

ADVICE = "use `--engine transformers` for it"

STATE_SPACE = ("mamba", "linear_attention", "conv", "recurrent", "gated_delta")
LARGEST_POSITION = ("longrope", "dynamic")


def unfit(why: str) -> LoadFailed:
    return LoadFailed(f"the native engine cannot run this model: {why}; {ADVICE}")


def check_config(config: Any) -> None:
    """Raise `LoadFailed` for what is known to be wrong before any weight is read."""
    from transformers.models.auto import modeling_auto as auto

    architecture = (getattr(config, "architectures", None) or [""])[0]
    model_type = config.model_type
    if model_type in auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES and "ForCausalLM" not in architecture:
        raise unfit("it sees images")
    if config.is_encoder_decoder:
        raise unfit("it is an encoder-decoder")
    known = model_type in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or hasattr(config, "auto_map")
    if not known or not ("CausalLM" in architecture or "LMHead" in architecture or not architecture):
        raise unfit(f"{architecture or model_type} is no causal language model")
    text = config.get_text_config()
    for why in _reasons(text):
        raise unfit(why)


def check_class(model: Any) -> None:
    """The class must leave its attention and its choice of positions to its caller."""
    name = type(model).__name__
    if not getattr(model, "_supports_attention_backend", False):
        raise unfit(f"the class {name} does its attention by itself")
    parameters = inspect.signature(model.forward).parameters
    for needed in ("position_ids", "logits_to_keep"):
        if needed not in parameters:
            raise unfit(f"the class {name} takes no {needed}")


def probe(model: Any, stage: Stage) -> dict[int, LayerShape]:
    """The shape of each layer's keys and values, seen in one pass over two ids."""
    import torch

    ids = torch.zeros(1, 2, dtype=torch.long, device=model.device)
    stage.shapes.clear()
    model.set_attn_implementation(NAME)
    with translated():
        model(
            input_ids=ids,
            position_ids=torch.arange(2, device=model.device)[None],
            attention_mask=torch.ones(1, 2, dtype=torch.bool, device=model.device),
            use_cache=False,
        )
    layers = int(model.config.get_text_config().num_hidden_layers)
    if len(stage.shapes) != layers:
        raise unfit(f"only {len(stage.shapes)} of its {layers} layers attend as we know it")
    return dict(stage.shapes)


@contextmanager
def translated() -> Iterator[None]:
    """What a class raises when it is run our way, as a refusal."""
    try:
        yield
    except UnfitModel as exc:
        raise unfit(str(exc)) from exc
    except (RuntimeError, ValueError, TypeError, AttributeError, IndexError, KeyError) as exc:
        if errors.is_out_of_memory(exc):
            raise
        raise unfit(f"its class fails in a batch ({errors.one_line(exc)})") from exc


def _reasons(text: Any) -> Iterator[str]:
    kinds = set(getattr(text, "layer_types", None) or ())
    if odd := sorted(kind for kind in kinds if any(word in str(kind) for word in STATE_SPACE)):
        yield f"it has layers of the kind {odd[0]}, which keep a state that is no list of keys"
    if getattr(text, "attention_chunk_size", None) and ("chunked_attention" in kinds or not kinds):
        yield "it attends in chunks"
    if getattr(text, "kv_lora_rank", None):
        yield "it keeps compressed keys and values (MLA)"
    if getattr(text, "num_kv_shared_layers", None):
        yield "some of its layers share their keys and values"
    for rope in _ropes(text):
        if rope in LARGEST_POSITION:
            yield f"its positions are scaled by the longest text of a batch ({rope})"


def _ropes(text: Any) -> Iterator[str]:
    """The kinds of rotary positions, of the model or of each kind of its layers."""
    for name in ("rope_parameters", "rope_scaling"):
        stated = getattr(text, name, None)
        if isinstance(stated, dict):
            for part in (stated, *(value for value in stated.values() if isinstance(value, dict))):
                yield str(part.get("rope_type", part.get("type", "")))

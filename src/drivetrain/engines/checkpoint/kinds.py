"""What kind of model a configuration describes: by the library's tables, or from the JSON alone."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from drivetrain.core.errors import LoadFailed


class ModelKind(StrEnum):
    CAUSAL = "causal"
    SEQ2SEQ = "seq2seq"
    VISION = "vision"
    ENCODER = "encoder"
    SCORER = "scorer"


IN_WORDS = {
    ModelKind.CAUSAL: "it is a causal language model",
    ModelKind.SEQ2SEQ: "it is an encoder-decoder",
    ModelKind.VISION: "it sees images",
    ModelKind.ENCODER: "it gives embeddings, not text",
    ModelKind.SCORER: "it scores pairs of texts",
}


class StatedConfig:
    """A configuration's JSON, with attributes like those of the library's configs."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data = data

    def __getattr__(self, name: str) -> Any:
        try:
            return self._data[name]
        except KeyError:
            raise AttributeError(name) from None

    def get_text_config(self) -> StatedConfig:
        nested = next((self._data[key] for key in ("text_config", "language_config") if key in self._data), None)
        return StatedConfig(nested) if isinstance(nested, dict) else self


def kind_of(config: Any) -> ModelKind:
    """By the architecture that the config names, else by the library's tables."""
    from transformers.models.auto import modeling_auto as auto

    architecture = (getattr(config, "architectures", None) or [""])[0]
    model_type = config.model_type
    if _is_scorer(architecture):
        return ModelKind.SCORER
    if model_type in auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES and "ForCausalLM" not in architecture:
        return ModelKind.VISION
    if config.is_encoder_decoder and model_type in auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES:
        return ModelKind.SEQ2SEQ
    causal = model_type in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or hasattr(config, "auto_map")
    if causal and _is_causal(architecture):
        return ModelKind.CAUSAL
    if architecture.endswith(("Model", "ForMaskedLM")):
        return ModelKind.ENCODER
    raise LoadFailed(f"{architecture or model_type} is not a model that gives text, embeddings or scores")


def stated_kind(config: Mapping[str, Any]) -> ModelKind:
    """The same from the JSON alone: the library may be missing, and takes seconds to import."""
    named = config.get("architectures")
    architecture = str(named[0]) if isinstance(named, list) and named else ""
    if _is_scorer(architecture):
        return ModelKind.SCORER
    if "vision_config" in config and "ForCausalLM" not in architecture:
        return ModelKind.VISION
    if config.get("is_encoder_decoder"):
        return ModelKind.SEQ2SEQ
    if not _is_causal(architecture) and architecture.endswith(("Model", "ForMaskedLM")):
        return ModelKind.ENCODER
    return ModelKind.CAUSAL


def _is_scorer(architecture: str) -> bool:
    return architecture.endswith("ForSequenceClassification")


def _is_causal(architecture: str) -> bool:
    return "CausalLM" in architecture or "LMHead" in architecture or not architecture

"""What this engine honours, and what of vLLM each request field needs. No vLLM here, so that `inspect` can tell."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from drivetrain.core.capabilities import Capabilities
from drivetrain.core.errors import LoadFailed
from drivetrain.core.parameters import TOKEN_PARAMETERS, WORKER_PARAMETERS
from drivetrain.engines.checkpoint.kinds import IN_WORDS, ModelKind, stated_kind
from drivetrain.engines.vllm.options import engine_arguments
from drivetrain.engines.vllm.settings import VllmSettings

NEEDS: Mapping[str, str] = {
    "n": "seed",
    "seed": "seed",
    "ignore_eos": "ignore_eos",
    "min_tokens": "min_tokens",
    "logprobs": "logprobs",
    "prompt_logprobs": "prompt_logprobs",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "logit_bias": "logit_bias",
    "suppress_tokens": "logit_bias",
    "bad_words_ids": "_bad_words_token_ids",
    "cache_salt": "cache_salt",
    "constraint": "structured_outputs",
}
"""For each request field the sampling parameter of vLLM (for `cache_salt`: the key of its prompts) that does it."""

ALWAYS = frozenset(
    {"detokenize", "output_kind", "max_tokens", "stop_token_ids", "ignore_eos", "skip_reading_prefix_cache"}
)
"""Sampling parameters without which no request can be put as it is meant."""


def capabilities_of(
    context_length: int, max_batch: int, present: Collection[str] | None = None, *, images: bool = False
) -> Capabilities:
    """`present` are the sampling parameters that the installed vLLM has; None: all that are needed."""
    honoured = {name for name, needed in NEEDS.items() if present is None or needed in present}
    return Capabilities(
        parameters=WORKER_PARAMETERS | TOKEN_PARAMETERS | honoured | ({"images"} if images else set()),
        vision=images,
        context_length=context_length,
        max_concurrency=max_batch,
    )


def stated_capabilities(config: Mapping[str, Any], context_length: int, options: Mapping[str, Any]) -> Capabilities:
    """Of a folder, from the JSON of its configuration: without vLLM."""
    kind = stated_kind(config)
    refuse_unless_text(kind)
    engine_arguments(options)
    return capabilities_of(context_length, VllmSettings.of(options).max_batch, images=kind is ModelKind.VISION)


def refuse_unless_text(kind: ModelKind) -> None:
    if kind in (ModelKind.ENCODER, ModelKind.SCORER, ModelKind.SEQ2SEQ):
        raise LoadFailed(f"{IN_WORDS[kind]}, which the vllm engine does not run; leave engine out, or use transformers")

"""What this engine honours, and how much it does at once. No torch here, so that `inspect` can tell without it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drivetrain.core.capabilities import Capabilities
from drivetrain.core.parameters import TOKEN_PARAMETERS, WORKER_PARAMETERS
from drivetrain.engines.native.settings import NativeSettings

HONOURED = frozenset({
    "min_tokens", "n", "seed", "ignore_eos", "logprobs", "prompt_logprobs", "constraint",
    "temperature", "top_p", "top_k", "min_p", "typical_p", "top_h", "epsilon_cutoff", "eta_cutoff",
    "repetition_penalty", "encoder_repetition_penalty", "presence_penalty", "frequency_penalty",
    "dry_multiplier", "dry_base", "dry_allowed_length", "dry_range", "dry_sequence_breakers",
    "xtc_probability", "xtc_threshold", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty", "logit_bias", "sequence_bias", "bad_words_ids", "suppress_tokens",
    "begin_suppress_tokens", "cache_salt",
})  # fmt: skip
"""The request fields that this engine honours."""


def capabilities_of(context_length: int, max_batch: int) -> Capabilities:
    return Capabilities(
        parameters=WORKER_PARAMETERS | TOKEN_PARAMETERS | HONOURED,
        embeddings=True,
        context_length=context_length,
        max_concurrency=max_batch,
    )


def stated_capabilities(config: Mapping[str, Any], context_length: int, options: Mapping[str, Any]) -> Capabilities:
    """Of a folder, from the JSON of its configuration: without the library."""
    return capabilities_of(context_length, NativeSettings.of(options).max_batch)

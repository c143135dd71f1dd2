"""One choice of a request as vLLM's sampling parameters. Plain values; vLLM's own class is handed in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from drivetrain.core.engine import EngineRequest
from drivetrain.core.errors import InvalidRequest
from drivetrain.core.sampling import Sampling
from drivetrain.engines.base.room import room

LOWEST_TEMPERATURE = 0.01
"""Below it vLLM's constructor puts this in place of what was asked for."""


def parameters_of(request: EngineRequest, index: int) -> dict[str, Any]:
    """Every sampling parameter by vLLM's name. Our stop ids hold the ends of the model too, so its own are off.

    vLLM gives at least one token: of a choice that wants none, the one that comes is to be dropped.
    """
    sampling = request.sampling
    limit = room(request)
    return {
        "temperature": 0.0 if sampling.greedy else sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": 0 if sampling.greedy else sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "logit_bias": _biases(request) or None,
        "_grammar": request.grammar.text if request.grammar is not None else None,
        "_bad_words_token_ids": [list(ids) for ids in sampling.bad_words_ids if len(ids) > 1] or None,
        "seed": seed_of(request.seeds[index]),
        "max_tokens": max(1, limit),
        "min_tokens": min(request.min_tokens, max(1, limit)),
        "stop_token_ids": sorted(request.stop_ids),
        "ignore_eos": True,
        "logprobs": request.logprobs if limit > 0 else None,
        "prompt_logprobs": request.prompt_logprobs if index == 0 else None,
        "detokenize": False,
        "skip_reading_prefix_cache": request.seeded or (index == 0 and request.prompt_logprobs is not None),
    }


def seed_of(seed: int) -> int:
    """In the range that every generator of vLLM takes; it reads -1 as «no seed»."""
    return seed % 2**63


def refuse_if_nothing_is_left(request: EngineRequest, vocab_size: int) -> None:
    """vLLM would sample from a row without a single number."""
    banned = _banned(request.sampling)
    if request.min_tokens:
        banned |= request.stop_ids
    if len(banned) >= vocab_size:
        raise InvalidRequest("every token is banned: nothing is left to sample", param="suppress_tokens")


def built(parameters: Mapping[str, Any], make: Any, delta: Any, structured: Any) -> Any:
    """`make` is vLLM's class, `delta` its way of giving each token once, `structured` its class for grammars."""
    given = dict(parameters)
    temperature, bad_words = given.pop("temperature"), given.pop("_bad_words_token_ids")
    grammar = given.pop("_grammar")
    if grammar is not None:
        given["structured_outputs"] = structured(grammar=grammar)
    params = make(temperature=max(temperature, LOWEST_TEMPERATURE) if temperature else 0.0, output_kind=delta, **given)
    params.temperature = temperature
    if bad_words is not None:
        params._bad_words_token_ids = bad_words
    return params


def _banned(sampling: Sampling) -> set[int]:
    return {*sampling.suppress_tokens, *(ids[0] for ids in sampling.bad_words_ids if len(ids) == 1)}


def _biases(request: EngineRequest) -> dict[int, float]:
    """Under a grammar, vLLM offers the model's own end, also one that is to be ignored."""
    sampling, grammar = request.sampling, request.grammar
    ignored = grammar.ends - request.stop_ids if grammar is not None else frozenset()
    return {**sampling.logit_bias, **dict.fromkeys(_banned(sampling) | ignored, -math.inf)}

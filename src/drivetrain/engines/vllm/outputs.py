"""What vLLM gives for one request, as steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drivetrain.core.engine import IdLogprobs, PromptStep, TokenStep
from drivetrain.core.errors import EngineFailed
from drivetrain.core.results import FinishReason

_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


def prompt_step(output: Any, count: int | None, *, widened: bool = False) -> PromptStep:
    """`count` is how many alternatives were asked for; None: no logprobs of the prompt.

    `widened`: images stand in it, so that its ids are told too.
    """
    logprobs = None
    if count is not None:
        listed = output.prompt_logprobs or ()
        logprobs = tuple(id_logprobs(entry, i, count) for entry, i in zip(listed, output.prompt_token_ids, strict=True))
    ids = tuple(output.prompt_token_ids) if widened else None
    return PromptStep(token_ids=ids, logprobs=logprobs, cached_tokens=max(0, output.num_cached_tokens or 0))


def token_step(index: int, completion: Any, count: int | None) -> TokenStep:
    """Several ids come in one output when the reader lags."""
    ids = tuple(completion.token_ids)
    logprobs = None
    if count is not None:
        logprobs = tuple(id_logprobs(entry, i, count) for entry, i in zip(completion.logprobs, ids, strict=True))
    return TokenStep(index, ids, logprobs, _reason(completion.finish_reason))


def id_logprobs(entry: Mapping[int, Any] | None, token_id: int, count: int) -> IdLogprobs:
    """vLLM lists the `count` likeliest ids and the one that stands there, which may be none of them."""
    if entry is None:
        return IdLogprobs(None)
    ranked = sorted(entry.items(), key=lambda item: item[1].rank)
    return IdLogprobs(entry[token_id].logprob, tuple((i, found.logprob) for i, found in ranked[:count]))


def _reason(reason: str | None) -> FinishReason | None:
    if reason is None:
        return None
    if reason not in _REASONS:
        raise EngineFailed(f"vLLM ended this request by itself ({reason})")
    return _REASONS[reason]

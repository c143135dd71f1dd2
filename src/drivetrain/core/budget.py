"""How much memory an answer may take: the product of what a request asks for, checked before any of it is computed.

Each factor has a limit of its own, but all of them at their limits would make gigabytes. The figures are upper bounds
on what was measured (`tests/bounds/test_products.py`): the values in memory together with their JSON.
"""

from __future__ import annotations

from collections.abc import Sequence

from drivetrain.core.capabilities import Capabilities, Limits
from drivetrain.core.errors import InvalidRequest
from drivetrain.core.request import GenerateRequest

TOKEN_BYTES = 200
"""For one sampled token: its id and its text, in the deltas and in the result."""

ENTRY_BYTES = 400
"""For a token's logprob, with its text and its bytes."""

ALTERNATIVE_BYTES = 250
"""For each alternative to a token."""

NUMBER_BYTES = 32
"""For one number of an embedding: a vector is few objects, and most clients ask for base64."""

CHARS_A_TOKEN = 4
"""A typical ratio, for text that has not been tokenized yet."""

_MB = 1_000_000


def tokens_held(request: GenerateRequest, limits: Limits, prompt_tokens: int) -> int:
    """How many tokens each choice may have. Negative if the echoed prompt alone exceeds the limit."""
    left = limits.max_answer_bytes // (request.n or 1) - _echo_bytes(request, prompt_tokens)
    return left // _token_bytes(request.logprobs)


def check_answer(request: GenerateRequest, capabilities: Capabilities, prompt_tokens: int) -> None:
    """Raise `InvalidRequest` if the answer could exceed `max_answer_bytes`.

    An omitted `max_tokens` counts as 0: such an answer simply ends when it reaches the limit, as it would at the end
    of the context. Tokens beyond the context are not counted; they are refused later, once the prompt is known.
    """
    limits = capabilities.limits
    num_tokens = min(max(request.max_tokens or 0, request.min_tokens or 0), capabilities.context_length)
    wanted = answer_bytes(request, num_tokens, prompt_tokens)
    if wanted > limits.max_answer_bytes:
        raise _too_large(_factors(request, num_tokens, prompt_tokens), wanted, limits)


def check_answers(requests: Sequence[GenerateRequest], capabilities: Capabilities) -> None:
    """The same for all prompts of one call together. Here an omitted `max_tokens` counts as the most it can become."""
    if len(requests) < 2:
        return
    limits, wanted = capabilities.limits, 0
    for request in requests:
        context = min(request.context_length or capabilities.context_length, capabilities.context_length)
        prompt = min(_tokens_of(request), context)
        max_tokens = request.max_tokens
        if max_tokens is None:
            max_tokens = max(0, min(context - prompt, tokens_held(request, limits, prompt)))
        wanted += answer_bytes(request, max_tokens, prompt)
    if wanted > limits.max_answer_bytes:
        first = requests[0]
        factors = [("prompt", f"{len(requests)} prompts"), *_factors(first, first.max_tokens, 0)]
        raise _too_large(factors, wanted, limits)


def check_vectors(num_inputs: int, size: int | None, limits: Limits) -> None:
    """`size` is how many numbers a vector has, or None if unknown."""
    wanted = num_inputs * (size or 0) * NUMBER_BYTES
    if wanted > limits.max_answer_bytes:
        raise _too_large([("input", f"{num_inputs:,} vectors of {size:,} numbers")], wanted, limits)


def answer_bytes(request: GenerateRequest, num_tokens: int, prompt_tokens: int) -> int:
    """For an answer with `num_tokens` in each choice."""
    choice = num_tokens * _token_bytes(request.logprobs) + _echo_bytes(request, prompt_tokens)
    return (request.n or 1) * choice


def _token_bytes(logprobs: int | None) -> int:
    return TOKEN_BYTES + (0 if logprobs is None else ENTRY_BYTES + ALTERNATIVE_BYTES * logprobs)


def _echo_bytes(request: GenerateRequest, prompt_tokens: int) -> int:
    return prompt_tokens * _token_bytes(request.prompt_logprobs) if request.echo else 0


def _tokens_of(request: GenerateRequest) -> int:
    if request.prompt_token_ids is not None:
        return len(request.prompt_token_ids)
    return len(request.prompt or "") // CHARS_A_TOKEN


def _factors(request: GenerateRequest, num_tokens: int | None, prompt_tokens: int) -> list[tuple[str, str]]:
    """What is multiplied, as (field, text), the field that is easiest to lower first."""
    shown = "the rest of the context" if num_tokens is None else f"{num_tokens:,}"
    factors = [("max_tokens", shown)] if num_tokens != 0 else []
    if (request.min_tokens or 0) > (request.max_tokens or 0):
        factors = [("min_tokens", shown)]
    if request.echo and prompt_tokens:
        factors.append(("echo", f"of {prompt_tokens:,} tokens"))
    counts = {"prompt_logprobs": request.prompt_logprobs, "logprobs": request.logprobs, "n": request.n}
    return factors + [(name, str(value)) for name, value in counts.items() if value is not None]


def _too_large(factors: Sequence[tuple[str, str]], wanted: int, limits: Limits) -> InvalidRequest:
    product = ", ".join(text if name in {"prompt", "input"} else f"{name} {text}" for name, text in factors)
    lower = factors[0][0] if len(factors) == 1 else "one of them"
    return InvalidRequest(
        f"{product}: this answer could take up to {_shown(wanted)}; "
        f"the limit is {_shown(limits.max_answer_bytes)}, so lower {lower}",
        param=factors[0][0],
    )


def _shown(num_bytes: int) -> str:
    return f"{num_bytes / _MB:,.1f} MB" if num_bytes >= _MB else f"{num_bytes:,} bytes"

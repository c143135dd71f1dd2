"""How much may follow a prompt, also one with images, whose length is known only once they are expanded."""

from __future__ import annotations

from drivetrain.core.engine import EngineRequest
from drivetrain.core.errors import ContextOverflow


def room(request: EngineRequest, prompt_tokens: int | None = None) -> int:
    """How many ids a choice may have behind its prompt, which is its ids unless its length is given."""
    left = request.context_length - (len(request.prompt_ids) if prompt_tokens is None else prompt_tokens)
    return left if request.max_tokens is None else min(request.max_tokens, left)


def room_after(prompt_tokens: int, request: EngineRequest) -> int:
    """How many ids may follow an expanded prompt; a default is cut to that, a caller's word is not.

    Raises `ContextOverflow`.
    """
    left, named = request.context_length - prompt_tokens, None if request.max_tokens_is_default else request.max_tokens
    if left <= 0 or (named is not None and named > left):
        raise overflow(prompt_tokens, request.context_length, named)
    return room(request, prompt_tokens)


def overflow(prompt_tokens: int, limit: int, wanted: int | None) -> ContextOverflow:
    """`wanted` is the `max_tokens` that the caller named."""
    asked = "" if wanted is None else f" and max_tokens is {wanted}"
    if wanted is None or prompt_tokens >= limit:
        param, said = "messages", f"prompt is too long: {prompt_tokens} tokens > {limit} of the context"
    else:
        param = "max_tokens"
        said = f"input length and `max_tokens` exceed context limit: {prompt_tokens} + {wanted} > {limit}"
    return ContextOverflow(
        f"{said} (images are counted{asked}); send fewer or smaller images, less text, or a smaller max_tokens",
        prompt_tokens=prompt_tokens,
        limit=limit,
        param=param,
    )

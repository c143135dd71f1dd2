"""How much may follow a prompt with images, whose length is known only once they are expanded."""

from __future__ import annotations

from drivetrain.core.engine import EngineRequest
from drivetrain.core.errors import ContextOverflow


def room_after(prompt_tokens: int, request: EngineRequest) -> int:
    """How many ids may follow an expanded prompt. Raises `ContextOverflow`."""
    left, wanted = request.context_length - prompt_tokens, request.max_tokens
    if left <= 0 or (wanted is not None and wanted > left):
        raise overflow(prompt_tokens, request.context_length, wanted)
    return left if wanted is None else wanted


def overflow(prompt_tokens: int, limit: int, wanted: int | None) -> ContextOverflow:
    asked = "" if wanted is None else f" and max_tokens is {wanted}"
    return ContextOverflow(
        f"prompt and images are {prompt_tokens} tokens{asked}, the context is {limit}; "
        "send fewer or smaller images, less text, or a smaller max_tokens",
        prompt_tokens=prompt_tokens,
        limit=limit,
        param="messages" if wanted is None or prompt_tokens >= limit else "max_tokens",
    )

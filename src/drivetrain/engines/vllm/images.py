"""A prompt with images: ids of our own text pipeline with one place an image, which vLLM widens to all its tokens."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from drivetrain.core.engine import EngineRequest, Media
from drivetrain.core.errors import ContextOverflow
from drivetrain.core.tokenizer import Tokenizer
from drivetrain.engines.vllm import errors
from drivetrain.engines.vllm.core import Running, Widened


async def widened(
    request: EngineRequest, media: Media, tokenizer: Tokenizer, core: Running
) -> tuple[EngineRequest, Widened]:
    """The request with the ids of its prompt. Raises `ContextOverflow`; `InvalidRequest` for images that do not fit.

    A text that is too long by itself is refused before any image is looked at.
    """
    ids = tuple(await asyncio.to_thread(tokenizer.encode, media.prompt))
    _check_room(request, len(ids))
    try:
        prompt = await core.widen(ids, media.images, request.cache_salt)
    except Exception as exc:
        raise errors.of_images(exc) from exc
    _check_room(request, len(prompt.token_ids))
    return replace(request, prompt_ids=prompt.token_ids), prompt


def _check_room(request: EngineRequest, prompt_tokens: int) -> None:
    room, wanted = request.context_length - prompt_tokens, request.max_tokens
    if room <= 0 or (wanted is not None and wanted > room):
        asked = "" if wanted is None else f" and max_tokens is {wanted}"
        raise ContextOverflow(
            f"prompt and images are {prompt_tokens} tokens{asked}, the context is {request.context_length};"
            " send fewer or smaller images, less text, or a smaller max_tokens",
            prompt_tokens=prompt_tokens,
            limit=request.context_length,
            param="messages" if room <= 0 or wanted is None else "max_tokens",
        )

"""A prompt with images: ids of our own text pipeline with one place an image, which vLLM widens to all its tokens."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from drivetrain.core.engine import EngineRequest, Media
from drivetrain.core.tokenizer import Tokenizer
from drivetrain.engines.base.room import room_after
from drivetrain.engines.vllm import errors
from drivetrain.engines.vllm.core import Running, Widened


async def widened(
    request: EngineRequest, media: Media, tokenizer: Tokenizer, core: Running
) -> tuple[EngineRequest, Widened]:
    """The request with the ids of its prompt. Raises `ContextOverflow`; `InvalidRequest` for images that do not fit.

    A text that is too long by itself is refused before any image is looked at.
    """
    ids = tuple(await asyncio.to_thread(tokenizer.encode, media.prompt))
    room_after(len(ids), request)
    try:
        prompt = await core.widen(ids, tuple(media.images), request.cache_salt)
    except Exception as exc:
        raise errors.of_images(exc) from exc
    room_after(len(prompt.token_ids), request)
    return replace(request, prompt_ids=prompt.token_ids), prompt

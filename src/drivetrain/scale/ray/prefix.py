"""How a prompt begins, as numbers: what two requests have in common is the beginning of both lists."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from itertools import islice

from drivetrain.core.request import GenerateRequest

BLOCK_CHARS = 256
MAX_BLOCKS = 32


def prefix_of(request: GenerateRequest) -> tuple[int, ...]:
    """A checksum for each block from the beginning up to its end. Equal ones mean equal beginnings, nearly always.

    The salt goes first: what is kept under one serves no request with another.
    """
    sums, total = [], zlib.crc32((request.cache_salt or "").encode("utf-8", "surrogatepass"))
    for block in islice(_blocks(_text(request)), MAX_BLOCKS):
        total = zlib.crc32(block, total)
        sums.append(total)
    return tuple(sums)


def _text(request: GenerateRequest) -> str:
    wanted = BLOCK_CHARS * MAX_BLOCKS
    if request.prompt is not None:
        return request.prompt[:wanted]
    if request.prompt_token_ids is not None:
        return " ".join(map(str, request.prompt_token_ids[:wanted]))[:wanted]
    text = ""
    for message in request.messages or ():
        text += f"\0{message.role}\0{message.text[:wanted]}"
        if len(text) >= wanted:
            break
    return text[:wanted]


def _blocks(text: str) -> Iterator[bytes]:
    """Whole blocks only: the rest is what differs."""
    for start in range(0, len(text) - BLOCK_CHARS + 1, BLOCK_CHARS):
        yield text[start : start + BLOCK_CHARS].encode("utf-8", "surrogatepass")

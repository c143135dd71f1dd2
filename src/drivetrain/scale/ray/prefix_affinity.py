"""Requests that begin alike, and the replica that was last sent such a beginning. Knows no Ray."""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import islice

from drivetrain.core.request import GenerateRequest

BLOCK_CHARS = 256
MAX_PREFIX_BLOCKS = 32

MAX_KNOWN_BLOCKS = 100_000
"""Least recently used ones go first. About 10 MB in each process that calls replicas."""

MAX_LEAD = 4
"""A replica that has this many more calls than the least busy one is passed over, whatever it has seen."""


def prefix_of(request: GenerateRequest) -> tuple[int, ...]:
    """A checksum for each block of the prompt, over all up to its end. Equal ones mean equal beginnings, nearly always.

    The salt and the tools go into the first one. What is cached under one salt serves no request with another, and
    tools fill many blocks that tell no two chats apart.
    """
    start = "\0".join((request.cache_salt or "", *_tools(request)))
    sums, total = [], zlib.crc32(start.encode("utf-8", "surrogatepass"))
    for block in islice(_blocks(_text(request)), MAX_PREFIX_BLOCKS):
        total = zlib.crc32(block, total)
        sums.append(total)
    return tuple(sums)


def _text(request: GenerateRequest) -> str:
    wanted = BLOCK_CHARS * MAX_PREFIX_BLOCKS
    if request.prompt is not None:
        return request.prompt[:wanted]
    if request.prompt_token_ids is not None:
        return " ".join(map(str, request.prompt_token_ids[:wanted]))[:wanted]
    text = ""
    for piece in _pieces(request):
        text += f"\0{piece[:wanted]}"
        if len(text) >= wanted:
            break
    return text[:wanted]


def _tools(request: GenerateRequest) -> Iterator[str]:
    for tool in request.offered_tools:
        yield from (tool.name, tool.description, tool.parameters)


def _pieces(request: GenerateRequest) -> Iterator[str]:
    """Of a chat. What has no text of its own is left out."""
    for message in request.messages or ():
        yield from (message.role, message.text)
        for call in message.tool_calls:
            yield from (call.name, call.arguments)


def _blocks(text: str) -> Iterator[bytes]:
    """Whole blocks only: the rest is where prompts differ."""
    for start in range(0, len(text) - BLOCK_CHARS + 1, BLOCK_CHARS):
        yield text[start : start + BLOCK_CHARS].encode("utf-8", "surrogatepass")


class PrefixAffinity:
    """Which replica was last sent each block."""

    def __init__(self, max_blocks: int = MAX_KNOWN_BLOCKS) -> None:
        self._replicas: OrderedDict[int, Hashable] = OrderedDict()
        self._max = max_blocks

    def note(self, prefix: Sequence[int], replica: Hashable) -> None:
        for block in prefix:
            self._replicas[block] = replica
            self._replicas.move_to_end(block)
        while len(self._replicas) > self._max:
            self._replicas.popitem(last=False)

    def choose(self, prefix: Sequence[int], loads: Mapping[Hashable, int]) -> Hashable | None:
        """The one among `loads` that has seen the longest beginning, unless it is much busier than the others."""
        for block in reversed(prefix):
            replica = self._replicas.get(block)
            if replica is not None and replica in loads:
                return replica if loads[replica] < min(loads.values()) + MAX_LEAD else None
        return None

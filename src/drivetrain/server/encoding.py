"""Encodes a document as JSON. Large ones are encoded on a thread, in slices, so that none holds the GIL for long.

The standard library's encoder holds the GIL until it is done, so it is given one slice at a time. Only lists get long,
and `Each` is a list whose items are made while it is encoded.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

SLICE = 2_000
"""Values to encode in one go, about half a millisecond of work. Smaller documents are encoded at once."""

VALUE_CHARS = 64
"""This many characters of a text count as another value."""


@dataclass(frozen=True, slots=True)
class Each:
    """A list in a document: `spell(item)` for each item, called only when it is the item's turn."""

    items: Sequence[Any]
    spell: Callable[[Any], Any]

    def __iter__(self) -> Iterator[Any]:
        return map(self.spell, self.items)


ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=list)


async def encoded(document: Any) -> bytes:
    """While a large document is encoded, the event loop goes on with other work."""
    if _size(document) <= SLICE:
        return ENCODER.encode(document).encode()
    return await asyncio.to_thread(_large, document)


def _large(document: Any) -> bytes:
    file = BytesIO()
    for piece in _pieces(document):
        file.write(piece.encode())
        time.sleep(0)  # lets waiting threads have the GIL now, not only after the switch interval
    return file.getvalue()


def _pieces(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for i, (name, item) in enumerate(value.items()):
            yield f"{',' if i else '{'}{ENCODER.encode(str(name))}:"
            yield from _pieces(item)
        yield "}" if value else "{}"
    elif isinstance(value, (list, tuple, Each)):
        yield "["
        yield from _slices(value)
        yield "]"
    else:
        yield ENCODER.encode(value)


def _slices(items: Iterable[Any]) -> Iterator[str]:
    """As many items at a time as fit into a slice; an item larger than that, in parts."""
    batch: list[Any] = []
    size, comma = 0, ""
    for item in items:
        item_size = _size(item)
        if batch and size + item_size > SLICE:
            yield comma + ENCODER.encode(batch)[1:-1]
            batch, size, comma = [], 0, ","
        if item_size > SLICE:
            yield comma
            yield from _pieces(item)
            comma = ","
        else:
            batch.append(item)
            size += item_size
    if batch:
        yield comma + ENCODER.encode(batch)[1:-1]


def _size(value: Any) -> int:
    """How many values it has, counted no further than `SLICE`."""
    size, open_ = 0, [value]
    while open_ and size <= SLICE:
        item = open_.pop()
        size += 1
        if isinstance(item, str):
            size += len(item) // VALUE_CHARS
        elif isinstance(item, Mapping):
            open_ += item.values()
        elif isinstance(item, Each):
            for part in item:
                size += _size(part)
                if size > SLICE:
                    break
        elif isinstance(item, (list, tuple)):
            open_ += item[: SLICE + 1]
    return size

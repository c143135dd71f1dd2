"""A document as JSON. A large one is spelled on a thread, in slices: no slice holds the interpreter for long.

The encoder of the standard library does not let go of the interpreter until it has the whole of what it is given, so it
is given no more than a slice at a time. What is long is a list, and `Each` is one that is made while it is spelled.
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
"""Values that are spelled in one go, about half a millisecond of work. A document of no more is spelled at once."""

VALUE_CHARS = 64
"""Of a text, so many count as another value."""


@dataclass(frozen=True, slots=True)
class Each:
    """A list in a document: what `spell` makes of each item, made only when its turn has come to be written."""

    items: Sequence[Any]
    spell: Callable[[Any], Any]

    def __iter__(self) -> Iterator[Any]:
        return map(self.spell, self.items)


ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=list)


async def encoded(document: Any) -> bytes:
    """While a large document is spelled, the event loop goes on with other work."""
    if _size(document) <= SLICE:
        return ENCODER.encode(document).encode()
    return await asyncio.to_thread(_large, document)


def _large(document: Any) -> bytes:
    file = BytesIO()
    for piece in _pieces(document):
        file.write(piece.encode())
        time.sleep(0)  # whoever waits for the interpreter has it now, not only after its switch interval
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
    """As many items at a time as make a slice; one that is more than a slice, by its parts."""
    together: list[Any] = []
    size, comma = 0, ""
    for item in items:
        one = _size(item)
        if together and size + one > SLICE:
            yield comma + ENCODER.encode(together)[1:-1]
            together, size, comma = [], 0, ","
        if one > SLICE:
            yield comma
            yield from _pieces(item)
            comma = ","
        else:
            together.append(item)
            size += one
    if together:
        yield comma + ENCODER.encode(together)[1:-1]


def _size(value: Any) -> int:
    """How many values it has; more than `SLICE` is not counted to the end."""
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

"""The ids that llama.cpp's stream leaves out, worked out from the text of the gap and their number.

Where there are several ways to spell its bytes with so many pieces, the one that merging pairs (lowest id first, as a
BPE vocabulary is made) leads to is taken: models say what they were taught. The bytes are right in any case.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from drivetrain.engines.llamacpp.vocabulary import Vocabulary

REPLACEMENT = "�"
_MAX_PIECE = 64
_MAX_STEPS = 100_000


def lost_ids(vocabulary: Vocabulary, text: str | bytes, last: int, count: int) -> tuple[int, ...] | None:
    """`count` ids that stand before `last` and spell `text` together with it; None if there are none.

    `text` is bytes where the server gave them, else a string in which broken bytes became U+FFFD.
    """
    tail = vocabulary.bytes_in_text(last)
    pieces = vocabulary.ids_by_bytes
    for data in [text] if isinstance(text, bytes) else _readings(text, pieces):
        if not data.endswith(tail):
            continue
        merged = _merge(data, pieces)
        if len(merged) == count + 1 and merged[-1] == last:
            return merged[:-1]
        found = _spell(data[: len(data) - len(tail)], count, pieces)
        if found is not None:
            return found
    return None


def _readings(text: str, pieces: Mapping[bytes, int]) -> Iterator[bytes]:
    """The bytes that may have become this string."""
    if REPLACEMENT not in text:
        yield text.encode()
        return
    parts = [part.encode() for part in text.split(REPLACEMENT)]
    for broken in (data for data in pieces if len(data) <= 3 and data[0] >= 0x80 and not _whole(data)):
        yield broken.join(parts)
    yield text.encode()


def _merge(data: bytes, pieces: Mapping[bytes, int]) -> tuple[int, ...]:
    """Byte-pair merging with the id as the rank. Empty if single bytes are no pieces of this vocabulary."""
    parts = [data[i : i + 1] for i in range(len(data))]
    while len(parts) > 1:
        ranked = [(pieces[a + b], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in pieces]
        if not ranked:
            break
        _, at = min(ranked)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return tuple(pieces[part] for part in parts) if all(part in pieces for part in parts) else ()


def _spell(data: bytes, count: int, pieces: Mapping[bytes, int]) -> tuple[int, ...] | None:
    """Exactly `count` pieces that join to `data`, longest first."""
    steps = 0
    dead: set[tuple[int, int]] = set()

    def search(at: int, left: int) -> tuple[int, ...] | None:
        nonlocal steps
        steps += 1
        if left == 0 or at == len(data):
            return () if left == 0 and at == len(data) else None
        if (at, left) in dead or steps > _MAX_STEPS or len(data) - at < left:
            return None
        for length in range(min(_MAX_PIECE, len(data) - at - left + 1), 0, -1):
            token_id = pieces.get(data[at : at + length])
            if token_id is not None and (rest := search(at + length, left - 1)) is not None:
                return (token_id, *rest)
        dead.add((at, left))
        return None

    return search(0, count)


def _whole(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True

"""How a vocabulary's pieces spell bytes, read from the decoder that came with the tokenizer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

PieceToBytes = Callable[[str], bytes]

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class PieceRule:
    """Each piece adds `to_bytes(piece)`; with `strip_first`, one space is dropped at the very start of a text."""

    to_bytes: PieceToBytes
    strip_first: bool


def piece_rule(decoder: Mapping[str, Any] | None) -> PieceRule | None:
    """The rule of a `tokenizers` decoder (its JSON form), or None if it does more than concatenate pieces."""
    if decoder is None:
        return PieceRule(lambda piece: b" " + piece.encode(), strip_first=True)
    steps = list(decoder["decoders"]) if decoder["type"] == "Sequence" else [decoder]
    replacements: list[tuple[str, str]] = []
    to_bytes: PieceToBytes | None = None
    strip_first = byte_fallback = False
    kinds = [step["type"] for step in steps]
    if not _pieces_stay_apart(kinds):
        return None
    for step, kind in zip(steps, kinds, strict=True):
        if kind == "Replace" and "String" in step["pattern"] and to_bytes is None:
            replacements.append((step["pattern"]["String"], step["content"]))
        elif kind == "Metaspace":
            replacements.append((step["replacement"], " "))
            strip_first = step.get("prepend_scheme", "always") != "never"
        elif kind == "ByteLevel" and to_bytes is None:
            to_bytes = byte_level_bytes
        elif kind == "ByteFallback":
            byte_fallback = True
        elif kind == "Strip" and step["content"] == " " and step["start"] <= 1 and step["stop"] == 0:
            strip_first = step["start"] == 1
        elif kind == "WordPiece" and len(steps) == 1:
            return PieceRule(_word_piece(step["prefix"], cleanup=step["cleanup"]), strip_first=True)
        elif kind != "Fuse":
            return None
    if to_bytes is not None:
        return PieceRule(to_bytes, strip_first) if not replacements and not byte_fallback else None
    return PieceRule(_replacing(tuple(replacements), byte_fallback=byte_fallback), strip_first)


def _pieces_stay_apart(kinds: list[str]) -> bool:
    """Whether each piece can be spelled on its own: no replacing across the fused text, no stripping of every piece."""
    fused = kinds.index("Fuse") if "Fuse" in kinds else len(kinds)
    if any(kind in {"Replace", "ByteFallback", "Metaspace"} for kind in kinds[fused + 1 :]):
        return False
    if "Strip" in kinds and kinds.index("Strip") < fused:
        return False
    return not ("Metaspace" in kinds and "ByteFallback" in kinds)


def byte_level_bytes(piece: str) -> bytes:
    """The GPT-2 alphabet: every byte is one printable character. A piece with any other character is plain text."""
    table = _byte_level_table()
    try:
        return bytes([table[char] for char in piece])
    except KeyError:
        return piece.encode()


def knows_all_bytes(model: Mapping[str, Any]) -> bool:
    """Whether a `tokenizers` model (its JSON form) spells unknown characters byte by byte."""
    if model.get("type") != "BPE":
        return False
    return bool(model.get("byte_fallback")) or _byte_level_table().keys() <= model["vocab"].keys()


@lru_cache(maxsize=1)
def _byte_level_table() -> dict[str, int]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(256 + i): byte for i, byte in enumerate(others)})
    return table


def _replacing(replacements: tuple[tuple[str, str], ...], *, byte_fallback: bool) -> PieceToBytes:
    def to_bytes(piece: str) -> bytes:
        if byte_fallback and (match := _BYTE_PIECE.fullmatch(piece)):
            return bytes([int(match[1], 16)])
        for old, new in replacements:
            piece = piece.replace(old, new)
        return piece.encode()

    return to_bytes


_CLEANUPS = (
    (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m"),
    (" do not", " don't"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"),
)  # fmt: skip


def _word_piece(prefix: str, *, cleanup: bool) -> PieceToBytes:
    def to_bytes(piece: str) -> bytes:
        text = piece[len(prefix) :] if piece.startswith(prefix) else f" {piece}"
        for old, new in _CLEANUPS if cleanup else ():
            text = text.replace(old, new)
        return text.encode()

    return to_bytes

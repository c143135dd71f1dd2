"""A rendered prompt: each span of its text is known to be ours or the caller's, and only ours holds special tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

from drivetrain.core.messages import Message


@dataclass(frozen=True, slots=True)
class Segment:
    """A span of prompt text. In a `literal` one, a special token's spelling is plain text."""

    text: str
    literal: bool = False


@dataclass(frozen=True, slots=True)
class Prompt:
    """The whole prompt in order, and whether the tokenizer should put its own BOS in front.

    `messages` are what it was rendered from, for a server that renders chats itself, and `gap` the texts on the two
    sides of what is to be filled in.
    """

    segments: tuple[Segment, ...]
    add_bos: bool = False
    messages: tuple[Message, ...] | None = None
    gap: tuple[str, str] | None = None

    @property
    def text(self) -> str:
        return "".join(segment.text for segment in self.segments)

    @staticmethod
    def raw(text: str, *, add_bos: bool = True) -> Prompt:
        """A prompt that the application wrote itself: its special tokens count."""
        return Prompt((Segment(text),), add_bos)

    @staticmethod
    def join(segments: Iterable[Segment], *, add_bos: bool) -> Prompt:
        """Drop empty segments and merge neighbours of the same kind."""
        merged: list[Segment] = []
        for segment in segments:
            if not segment.text:
                continue
            if merged and merged[-1].literal == segment.literal:
                merged[-1] = Segment(merged[-1].text + segment.text, segment.literal)
            else:
                merged.append(segment)
        return Prompt(tuple(merged), add_bos)


def find_specials(text: str, specials: frozenset[str]) -> list[tuple[int, int]]:
    """The (start, end) of each special token spelled in `text`, in order and not overlapping; the longest one wins."""
    pattern = _pattern(specials)
    return [match.span() for match in pattern.finditer(text)] if pattern else []


def own_specials(prompt: Prompt, specials: frozenset[str]) -> list[tuple[int, int]]:
    """Those that are spelled entirely in our own text: the only ones that count."""
    spans: list[tuple[int, int]] = []
    at = 0
    for literal, run in groupby(prompt.segments, key=lambda segment: segment.literal):
        text = "".join(segment.text for segment in run)
        if not literal:
            spans += [(at + start, at + end) for start, end in find_specials(text, specials)]
        at += len(text)
    return spans


def apart(prompt: Prompt, specials: frozenset[str]) -> list[tuple[str, bool]]:
    """The text in order, split at our own special tokens, which are marked True. All else is plain text."""
    text, parts, at = prompt.text, list[tuple[str, bool]](), 0
    for start, end in own_specials(prompt, specials):
        parts += [(text[at:start], False), (text[start:end], True)]
        at = end
    return [part for part in (*parts, (text[at:], False)) if part[0]]


def forged(prompt: Prompt, specials: frozenset[str]) -> str | None:
    """The first special token that is spelled, if only in part, by the caller. Overlapping spellings are looked at too:
    this is for a text that another server will split as a whole, by rules that are not known here."""
    pattern = _overlapping(specials) if any(segment.literal for segment in prompt.segments) else None
    if pattern is None:
        return None
    literal = "".join(("1" if segment.literal else "0") * len(segment.text) for segment in prompt.segments)
    spans = (match.span(1) for match in pattern.finditer(prompt.text))
    return next((prompt.text[start:end] for start, end in spans if "1" in literal[start:end]), None)


@lru_cache(maxsize=64)
def _overlapping(specials: frozenset[str]) -> re.Pattern[str] | None:
    pattern = _pattern(specials)
    return pattern and re.compile(f"(?=({pattern.pattern}))")


@lru_cache(maxsize=64)
def _pattern(specials: frozenset[str]) -> re.Pattern[str] | None:
    """Built as a trie, so that the work on a text does not grow with the number of special tokens."""
    root: dict[str, Any] = {}
    for special in specials - {""}:
        node = root
        for char in special:
            node = node.setdefault(char, {})
        node[""] = {}
    return re.compile(_branch(root)) if root else None


def _branch(node: dict[str, Any]) -> str:
    """What may follow here; if a spelling ends here, the rest is optional, and greedy."""
    parts = [re.escape(char) + _branch(after) for char, after in sorted(node.items()) if char]
    if not parts:
        return ""
    whole = parts[0] if len(parts) == 1 and "" not in node else f"(?:{'|'.join(parts)})"
    return f"{whole}?" if "" in node else whole

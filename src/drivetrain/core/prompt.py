"""A rendered prompt: text whose every span is known to be ours or the caller's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from drivetrain.core.messages import Message


@dataclass(frozen=True, slots=True)
class Segment:
    """A span of prompt text. In a `literal` one, text that spells a special token stays text."""

    text: str
    literal: bool = False


@dataclass(frozen=True, slots=True)
class Prompt:
    """The whole prompt in order, and whether the tokenizer should add its own BOS in front.

    `messages` are what it was rendered from: a server that renders chats itself is sent those.
    """

    segments: tuple[Segment, ...]
    add_bos: bool = False
    messages: tuple[Message, ...] | None = None

    @property
    def text(self) -> str:
        return "".join(segment.text for segment in self.segments)

    @staticmethod
    def raw(text: str, *, add_bos: bool = True) -> Prompt:
        """A prompt that the application wrote whole: its special tokens count."""
        return Prompt((Segment(text),), add_bos)

    @staticmethod
    def join(segments: Iterable[Segment], *, add_bos: bool) -> Prompt:
        """Drop the empty segments and merge neighbours of a kind."""
        merged: list[Segment] = []
        for segment in segments:
            if not segment.text:
                continue
            if merged and merged[-1].literal == segment.literal:
                merged[-1] = Segment(merged[-1].text + segment.text, segment.literal)
            else:
                merged.append(segment)
        return Prompt(tuple(merged), add_bos)

"""Forms written as a script: a system text on top, then turns that begin with the speaker's label."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from drivetrain.core.messages import Message
from drivetrain.core.prompt import Segment
from drivetrain.families.base import Family, without_system


class LabelledTurns(Family):
    """A turn is the role's name, `label_end`, the content, and `separator`, or `answer_end` after the assistant's.

    The system text has a label only where `roles.system` is not empty.
    """

    label_end: ClassVar[str] = ": "
    answer_end: ClassVar[str]

    def segments(self, messages: Sequence[Message]) -> Iterator[Segment]:
        system = self.system_text(messages)
        if system:
            if self.roles.system:
                yield self.label("system")
            yield from system
            yield Segment(self.separator)
        for message in without_system(messages):
            yield self.label(message.role)
            yield from self.content(message)
            yield Segment(self.answer_end if message.role == "assistant" else self.separator)
        # No space or newline at the end: the first token of an answer brings its own.
        yield Segment(self.label("assistant").text.rstrip())

    def label(self, role: str) -> Segment:
        return Segment(self.roles.name_of(role) + self.label_end)

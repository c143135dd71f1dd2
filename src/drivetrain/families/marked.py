"""Forms where every message stands between tokens of its own: an opening that names its role, and an end of turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from drivetrain.core.messages import Message
from drivetrain.core.prompt import Segment
from drivetrain.families.base import Family


class MarkedTurns(Family):
    """A turn is `before_role`, its role's name, `after_role`, the content, `separator`. System ones stay in place."""

    before_role: ClassVar[str]
    after_role: ClassVar[str]

    def segments(self, messages: Sequence[Message]) -> Iterator[Segment]:
        if self.default_system and all(message.role != "system" for message in messages):
            yield from self.turn("system", [Segment(self.default_system)])
        for message in messages:
            yield from self.turn(message.role, self.content(message))
        yield self.opening("assistant")

    def turn(self, role: str, content: Iterator[Segment] | Sequence[Segment]) -> Iterator[Segment]:
        yield self.opening(role)
        yield from content
        yield Segment(self.separator)

    def opening(self, role: str) -> Segment:
        return Segment(self.before_role + self.roles.name_of(role) + self.after_role)

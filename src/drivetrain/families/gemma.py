"""Gemma 1 to 3: `user` and `model` turns, no system role (Google's model cards).

The system text stands before the first user message, as in Gemma 3's own template.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from drivetrain.core.messages import Message
from drivetrain.core.prompt import Segment
from drivetrain.families.base import Roles, require_alternation, without_system
from drivetrain.families.marked import MarkedTurns


class Gemma(MarkedTurns):
    name = "gemma"
    roles = Roles(system="", user="user", assistant="model")
    before_role = "<start_of_turn>"
    after_role = "\n"
    separator = "<end_of_turn>\n"
    stop_tokens = ("<end_of_turn>",)
    architectures = frozenset(
        {"gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text", "recurrent_gemma"}
    )
    name_patterns = (r"(?<!pali)(?<!embedding)gemma(?!-?4)",)  # Gemma 4 has other tokens
    image_token = "<start_of_image>"

    def check(self, messages: Sequence[Message]) -> None:
        super().check(messages)
        require_alternation(messages, self.name)

    def segments(self, messages: Sequence[Message]) -> Iterator[Segment]:
        system = self.system_text(messages)
        first, *later = without_system(messages)
        prefix = (*system, Segment("\n\n")) if system else ()
        yield from self.turn("user", (*prefix, *self.content(first)))
        for message in later:
            yield from self.turn(message.role, self.content(message))
        yield self.opening("assistant")

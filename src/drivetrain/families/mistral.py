"""Mistral and Mixtral instruct, v0.1 and v0.2: `[INST]` around the user, EOS after each answer (Mistral's model cards).

There is no system role: its text stands before the first user message, with a blank line after it. The later Tekken
models (Nemo, Small) write the same without some of the blanks; their own chat templates come first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from drivetrain.core.messages import Message
from drivetrain.core.prompt import Segment
from drivetrain.families.base import Family, Roles, require_alternation, require_user_last, without_system


class Mistral(Family):
    name = "mistral"
    roles = Roles(system="", user="[INST]", assistant="[/INST]")
    separator = " "
    stop_tokens = ("</s>",)
    architectures = frozenset({"mistral", "mixtral"})
    name_patterns = (r"mistral", r"mixtral")

    def check(self, messages: Sequence[Message]) -> None:
        super().check(messages)
        require_alternation(messages, self.name)
        require_user_last(messages, self.name)

    def segments(self, messages: Sequence[Message]) -> Iterator[Segment]:
        system = self.system_text(messages)
        for i, message in enumerate(without_system(messages)):
            if message.role == "assistant":
                yield Segment(" ")
                yield from self.content(message)
                yield Segment("</s> ")
                continue
            # At the start no blank, unlike the newer template: after its own BOS the tokenizer adds that one itself.
            yield Segment("[INST] ")
            if i == 0 and system:
                yield from system
                yield Segment("\n\n")
            yield from self.content(message)
            yield Segment(" [/INST]")

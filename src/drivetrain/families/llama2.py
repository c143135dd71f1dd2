"""Llama 2 chat: `[INST]` around the user, `<<SYS>>` inside the first one (Meta's reference code).

Every exchange begins with its own BOS, so the form spells them all, the first one too. The system text that Meta first
published as a default was withdrawn; there is none here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from drivetrain.core.messages import Message
from drivetrain.core.prompt import Segment
from drivetrain.families.base import Family, Roles, require_alternation, require_user_last, without_system


class Llama2(Family):
    name = "llama2"
    roles = Roles(system="<<SYS>>", user="[INST]", assistant="[/INST]")
    separator = " "
    stop_tokens = ("</s>",)
    add_bos = False
    name_patterns = (r"llama-?2.*chat",)

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
                yield Segment(" </s>")
                continue
            yield Segment("<s>[INST] ")
            if i == 0 and system:
                yield Segment("<<SYS>>\n")
                yield from system
                yield Segment("\n<</SYS>>\n\n")
            yield from self.content(message)
            yield Segment(" [/INST]")

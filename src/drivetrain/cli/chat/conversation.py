"""What a chat remembers: its turns, its system text, the images for the next message, and the request parameters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from drivetrain.cli.flags.prompts import user_message
from drivetrain.core.messages import ImagePart, Message, TextPart


@dataclass(slots=True)
class Conversation:
    """`turns` are whole exchanges, question and answer in turn; failed ones are not kept."""

    system: str | None = None
    turns: list[Message] = field(default_factory=list)
    images: list[ImagePart] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)

    def question(self, text: str) -> Message:
        """The user's next message, with the pending images. Nothing is changed yet."""
        return user_message(text, self.images)

    def request(self, question: Message) -> dict[str, Any]:
        system = [Message("system", (TextPart(self.system),))] if self.system else []
        return {"messages": [*system, *self.turns, question], **self.parameters}

    def keep(self, question: Message, answer: str) -> None:
        self.turns += [question, Message("assistant", (TextPart(answer),))]
        self.images.clear()

    def undo(self) -> bool:
        """Forget the last exchange; False if there is none."""
        last = max((i for i, message in enumerate(self.turns) if message.role == "user"), default=None)
        if last is None:
            return False
        del self.turns[last:]
        return True

    def reset(self) -> None:
        """Start again; the system text and the parameters stay."""
        self.turns.clear()
        self.images.clear()

    def drop_images(self) -> bool:
        """Forget the pending images; False if there are none."""
        had = bool(self.images)
        self.images.clear()
        return had

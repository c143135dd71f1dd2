"""What a family is: the prompt form that a line of models was trained on, its stops and its default sampling."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from drivetrain.core.errors import InvalidRequest, Unsupported
from drivetrain.core.messages import ImagePart, Message
from drivetrain.core.prompt import Prompt, Segment


@dataclass(frozen=True, slots=True)
class Roles:
    """How the form names who speaks (shown in the metadata)."""

    system: str
    user: str
    assistant: str


class Family(ABC):
    """Subclasses set the class attributes and write `segments`. Instances hold no state of a request.

    `stop` and `sampling` are defaults: a request, the settings and the model's own generation_config come first.
    `stop_tokens` are end-of-turn tokens; those that the vocabulary has join the EOS set.
    """

    name: ClassVar[str]
    roles: ClassVar[Roles]
    separator: ClassVar[str] = "\n"
    stop: ClassVar[tuple[str, ...]] = ()
    stop_tokens: ClassVar[tuple[str, ...]] = ()
    sampling: ClassVar[Mapping[str, Any]] = {}
    max_tokens: ClassVar[int | None] = None
    """The default length of an answer; None is the rest of the context."""
    add_bos: ClassVar[bool] = True
    """Whether the tokenizer puts its own BOS in front (False where the form spells it)."""
    architectures: ClassVar[frozenset[str]] = frozenset()
    """`model_type` values of the config that mean this family."""
    name_patterns: ClassVar[tuple[str, ...]] = ()
    """Regular expressions searched in the lower-cased model name."""
    image_token: ClassVar[str | None] = None

    @abstractmethod
    def segments(self, messages: Sequence[Message]) -> Iterator[Segment]:
        """The prompt up to the place where the answer begins. What the caller wrote goes into literal segments."""

    def render(self, messages: Sequence[Message]) -> Prompt:
        return Prompt.join(self.segments(messages), add_bos=self.add_bos)

    def content(self, message: Message) -> Iterator[Segment]:
        """A message's parts in order: its text as literal segments, its images as the form's image token."""
        for part in message.content:
            if isinstance(part, ImagePart):
                if self.image_token is None:
                    raise Unsupported(f"the prompt form {self.name} has no place for images", param="messages")
                yield Segment(self.image_token)
            else:
                yield Segment(part.text, literal=True)


def split_system(messages: Sequence[Message]) -> tuple[str | None, list[Message]]:
    """The text of all system messages, joined by blank lines (None: there is none), and the other messages."""
    system = [message.text for message in messages if message.role == "system"]
    rest = [message for message in messages if message.role != "system"]
    return ("\n\n".join(system) if system else None), rest


def refuse_tool_role(messages: Sequence[Message], family: str) -> None:
    for i, message in enumerate(messages):
        if message.role == "tool":
            raise InvalidRequest(f"the prompt form {family} has no tool role", param=f"messages[{i}].role")

"""What a family is: the prompt form that its models were trained on, its stops and its default sampling."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from drivetrain.core.errors import InvalidRequest, Unsupported
from drivetrain.core.messages import ImagePart, Message
from drivetrain.core.prompt import Prompt, Segment
from drivetrain.core.tools import Tool

NOTHING_SET: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Roles:
    """How the form names the speakers (shown in the metadata). Empty: the form has no name for that role."""

    system: str
    user: str
    assistant: str

    def name_of(self, role: str) -> str:
        return {"system": self.system, "user": self.user, "assistant": self.assistant}[role]


CHAT_ROLES = Roles(system="system", user="user", assistant="assistant")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family(ABC):
    """A family is data, a row of `table.py`. Its class, from `turns.py`, writes the turns and adds fields for that.

    `stop` and `sampling` are defaults: the request, the settings, the model's own generation_config and the catalogue's
    sampling take precedence.
    `stop_tokens` are end-of-turn tokens; those that the vocabulary has join the EOS set.
    The caller's text goes into the prompt unchanged: nothing is trimmed, unlike in many chat templates.
    An assistant message at the end is not continued: the prompt closes it and opens a new turn.
    """

    name: str
    roles: Roles
    separator: str = "\n"
    """What follows a turn (shown in the metadata)."""
    default_system: str = ""
    """The system text if the caller sends no system message. An empty system message turns it off."""
    stop: tuple[str, ...] = ()
    stop_tokens: tuple[str, ...] = ()
    sampling: Mapping[str, Any] = field(default_factory=lambda: NOTHING_SET)
    max_tokens: int | None = None
    """The default length of an answer; None means the rest of the context."""
    add_bos: bool = True
    """Whether the tokenizer puts its own BOS in front (False if the form spells it, or has none)."""
    architectures: tuple[str, ...] = ()
    """`model_type` values in the config that mean this family."""
    architectures_if_named: tuple[str, ...] = ()
    """`model_type` values that mean this family if the name matches too: its models are fine-tunes of another's."""
    name_patterns: tuple[str, ...] = ()
    """Regular expressions searched in the lower-cased model name."""
    image_token: str | None = None
    image_end: str = ""
    """What the form puts after an image."""

    @abstractmethod
    def segments(self, messages: Sequence[Message]) -> Iterator[Segment]:
        """The prompt up to where the answer begins. What the caller wrote goes into literal segments."""

    @property
    def variables(self) -> frozenset[str]:
        """The names of what a caller can set for a rendering."""
        return frozenset()

    @property
    def takes_system(self) -> bool:
        return True

    @property
    def writes_calls(self) -> bool:
        """Whether the form has its own way to write calls and their results."""
        return False

    @property
    def writes_tools(self) -> bool:
        """Whether it has one to write the tools too."""
        return False

    def render(
        self, messages: Sequence[Message], *, tools: Sequence[Tool] = (), variables: Mapping[str, Any] = NOTHING_SET
    ) -> Prompt:
        """Tools, calls and variables are only for forms that have them: see `chats.py`."""
        assert not tools, "the form has no tools"
        self.check(messages)
        return Prompt.join(self.segments(messages), add_bos=self.add_bos)

    def check(self, messages: Sequence[Message]) -> None:
        """Raise `InvalidRequest` for messages that the form cannot express. `render` calls it first."""
        refuse_calls(messages, self.name)

    def content(self, message: Message) -> Iterator[Segment]:
        """A message's parts in order: text as literal segments, images as the form's image token."""
        for part in message.content:
            if isinstance(part, ImagePart):
                if self.image_token is None:
                    raise Unsupported(f"the prompt form {self.name} has no place for images", param="messages")
                yield Segment(self.image_token + self.image_end)
            else:
                yield Segment(part.text, literal=True)

    def system_text(self, messages: Sequence[Message]) -> tuple[Segment, ...]:
        """For forms with one place for it: all system messages, separated by blank lines, or the form's own default.

        Empty if there is none. Images are refused: moved to the front, they would change their order.
        """
        given = [(i, message) for i, message in enumerate(messages) if message.role == "system"]
        if not given:
            return (Segment(self.default_system),) if self.default_system else ()
        joined: list[Segment] = []
        for i, message in given:
            if message.images:
                what = f"the prompt form {self.name} has no place for images in a system message"
                raise Unsupported(what, param=f"messages[{i}].content")
            if message.text:
                joined += [Segment("\n\n")] if joined else []
                joined.append(Segment(message.text, literal=True))
        return tuple(joined)


def refuse_calls(messages: Sequence[Message], family: str) -> None:
    for i, message in enumerate(messages):
        if message.role == "tool":
            raise InvalidRequest(f"the prompt form {family} has no tool role", param=f"messages[{i}].role")
        if message.tool_calls:
            raise InvalidRequest(f"the prompt form {family} has no calls", param=f"messages[{i}].tool_calls")

"""The ways to write a chat's turns. A family that uses one of them is just another row of `table.py`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from drivetrain.core.errors import InvalidRequest
from drivetrain.core.messages import Message
from drivetrain.core.prompt import Segment
from drivetrain.families.base import Family, refuse_calls


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledTurns(Family):
    """A script: the system text on top, then turns that begin with the speaker's label.

    A turn is the role's name, `label_end`, the content, and `separator`, or `answer_end` after the assistant's.
    The system text has a label only if `roles.system` is not empty.
    """

    label_end: str = ": "
    answer_end: str

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
        # No trailing space or newline: the first token of an answer brings its own.
        yield Segment(self.label("assistant").text.rstrip())

    def label(self, role: str) -> Segment:
        return Segment(self.roles.name_of(role) + self.label_end)


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedTurns(Family):
    """Every message is wrapped in tokens: `before_role`, its role's name, `after_role`, the content, `separator`.

    System messages stay where they are.
    """

    before_role: str
    after_role: str

    def segments(self, messages: Sequence[Message]) -> Iterator[Segment]:
        if self.default_system and all(message.role != "system" for message in messages):
            yield from self.turn("system", [Segment(self.default_system)])
        for message in messages:
            yield from self.turn(message.role, self.content(message))
        yield self.header("assistant")

    def turn(self, role: str, content: Iterable[Segment]) -> Iterator[Segment]:
        yield self.header(role)
        yield from content
        yield Segment(self.separator)

    def header(self, role: str) -> Segment:
        return Segment(self.before_role + self.roles.name_of(role) + self.after_role)


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedTurnsWithoutSystem(MarkedTurns):
    """The system text comes before the first user message, followed by a blank line."""

    def check(self, messages: Sequence[Message]) -> None:
        refuse_calls(messages, self.name)
        require_alternation(messages, self.name)

    def segments(self, messages: Sequence[Message]) -> Iterator[Segment]:
        system = self.system_text(messages)
        first, *later = without_system(messages)
        prefix = (*system, Segment("\n\n")) if system else ()
        yield from self.turn("user", (*prefix, *self.content(first)))
        for message in later:
            yield from self.turn(message.role, self.content(message))
        yield self.header("assistant")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstTurns(Family):
    """`[INST]` and `[/INST]` around the user's messages, the system text inside the first one."""

    before_user: str
    before_system: str = ""
    after_system: str
    answer_end: str

    def check(self, messages: Sequence[Message]) -> None:
        refuse_calls(messages, self.name)
        require_alternation(messages, self.name)
        require_user_last(messages, self.name)

    def segments(self, messages: Sequence[Message]) -> Iterator[Segment]:
        system = self.system_text(messages)
        for i, message in enumerate(without_system(messages)):
            if message.role == "assistant":
                yield Segment(" ")
                yield from self.content(message)
                yield Segment(self.answer_end)
                continue
            yield Segment(self.before_user)
            if i == 0 and system:
                yield Segment(self.before_system)
                yield from system
                yield Segment(self.after_system)
            yield from self.content(message)
            yield Segment(" [/INST]")


def require_alternation(messages: Sequence[Message], family: str) -> None:
    """Apart from system messages: user and assistant in turn, the user first."""
    expected = "user"
    for i, message in enumerate(messages):
        if message.role == "system":
            continue
        if message.role != expected:
            what = f"messages[{i}].role is {message.role}; the prompt form {family} needs {expected} here"
            raise InvalidRequest(f"{what}: user and assistant in turn, the user first", param=f"messages[{i}].role")
        expected = "assistant" if expected == "user" else "user"
    if not without_system(messages):
        raise InvalidRequest(f"the prompt form {family} needs a message from the user", param="messages")


def require_user_last(messages: Sequence[Message], family: str) -> None:
    """For forms in which only a user's turn can be answered."""
    last = max((i for i, message in enumerate(messages) if message.role != "system"), default=None)
    if last is not None and messages[last].role != "user":
        what = f"the prompt form {family} can answer only a user message, and the last one is {messages[last].role}"
        raise InvalidRequest(what, param=f"messages[{last}].role")


def without_system(messages: Sequence[Message]) -> list[Message]:
    return [message for message in messages if message.role != "system"]

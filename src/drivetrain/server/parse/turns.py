"""A chat put together from smaller things: consecutive items of the assistant are one message."""

from __future__ import annotations

from collections.abc import Sequence

from drivetrain.core.answer import ToolCall
from drivetrain.core.errors import InvalidRequest
from drivetrain.core.kinds import shown
from drivetrain.core.messages import Message, Part, TextPart


class Turns:
    """Messages as they come, with the calls that they have made so far."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._content: list[Part] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCall] = []
        self._is_open = False
        self._ids: set[str] = set()

    def add(self, role: str, content: Sequence[Part]) -> None:
        """A message of anyone but the assistant."""
        self._close()
        self._messages.append(Message(role, tuple(content)))

    def answered(self, content: Sequence[Part]) -> None:
        """More content of the assistant."""
        self._is_open = True
        self._content += content

    def reasoned(self, text: str) -> None:
        self._is_open = True
        self._reasoning.append(text)

    def called(self, call_id: str, name: str, arguments: str) -> None:
        self._is_open = True
        self._ids.add(call_id)
        self._calls.append(ToolCall(len(self._calls), name, arguments, id=call_id))

    def result(self, call_id: str, content: Sequence[Part], where: str) -> None:
        """`where` names the id's place. Raises `InvalidRequest` if there was no such call."""
        if call_id not in self._ids:
            what = f"{where} is {shown(call_id)}, which is the id of no call before it"
            raise InvalidRequest(what, param=where)
        self._close()
        self._messages.append(Message("tool", tuple(content) or (TextPart(""),), tool_call_id=call_id))

    def messages(self) -> tuple[Message, ...]:
        self._close()
        return tuple(self._messages)

    def _close(self) -> None:
        if not self._is_open:
            return
        content = tuple(self._content) or (TextPart(""),)
        reasoning = "\n".join(self._reasoning)
        self._messages.append(Message("assistant", content, tuple(self._calls), reasoning=reasoning))
        self._content, self._reasoning, self._calls, self._is_open = [], [], [], False

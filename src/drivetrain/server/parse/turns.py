"""A chat put together from smaller things: consecutive items of the assistant are one message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drivetrain.core.answer import ToolCall
from drivetrain.core.earlier_calls import MAX_CALLS
from drivetrain.core.errors import InvalidRequest, Unsupported
from drivetrain.core.kinds import shown
from drivetrain.core.messages import Message, Part, TextPart


class Turns:
    """Messages as they come, with the calls that they have made so far. `where` is always the client's place."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._places: list[str] = []
        self._content: list[Part] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCall] = []
        self._begun_at: str | None = None
        self._ids: set[str] = set()

    def add(self, role: str, content: Sequence[Part], where: str) -> None:
        """A message of anyone but the assistant."""
        self._close()
        self._put(Message(role, tuple(content)), where)

    def answered(self, content: Sequence[Part], where: str) -> None:
        """More content of the assistant."""
        self._begin(where)
        self._content += content

    def reasoned(self, text: str, where: str) -> None:
        self._begin(where)
        self._reasoning.append(text)

    def called(self, call_id: str, name: str, arguments: str, where: str) -> None:
        """Raises `InvalidRequest` if one message would have too many."""
        self._begin(where)
        if len(self._calls) >= MAX_CALLS:
            raise InvalidRequest(f"{where} is one call too many in a row; the limit is {MAX_CALLS}", param=where)
        self._ids.add(call_id)
        self._calls.append(ToolCall(len(self._calls), name, arguments, id=call_id))

    def result(self, call_id: str, content: Sequence[Part], where: str, id_name: str) -> None:
        """`id_name` is the field of the id. Raises `InvalidRequest` if there was no such call."""
        if call_id not in self._ids:
            place = f"{where}.{id_name}"
            raise InvalidRequest(f"{place} is {shown(call_id)}, which is the id of no call before it", param=place)
        self._close()
        self._put(Message("tool", tuple(content) or (TextPart(""),), tool_call_id=call_id), where)

    def messages(self) -> tuple[Message, ...]:
        self._close()
        return tuple(self._messages)

    @property
    def names(self) -> Mapping[str, str]:
        """Where each message came from, for errors about it."""
        return {f"messages[{i}]": place for i, place in enumerate(self._places)}

    def _begin(self, where: str) -> None:
        if self._begun_at is None:
            self._begun_at = where

    def _put(self, message: Message, where: str) -> None:
        self._messages.append(message)
        self._places.append(where)

    def _close(self) -> None:
        if self._begun_at is None:
            return
        content, reasoning = tuple(self._content) or (TextPart(""),), "\n".join(self._reasoning)
        self._put(Message("assistant", content, tuple(self._calls), reasoning=reasoning), self._begun_at)
        self._content, self._reasoning, self._calls, self._begun_at = [], [], [], None


def refuse_begun(at: int, last: Mapping[str, Any]) -> None:
    """Raises `Unsupported` if the last message is the beginning of an answer."""
    if last["role"] == "assistant":
        place = f"messages[{at}]"
        what = "is the assistant's: continuing a given beginning is not supported; end with a message of the user"
        raise Unsupported(f"{place} {what}", param=place)

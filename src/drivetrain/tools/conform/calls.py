"""Tool calls and reasoning of a message, whole or put together from the pieces of a stream."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from drivetrain.tools.conform.reading import brief, take
from drivetrain.tools.conform.verdict import Failed

REASONING_FIELDS = ("reasoning_content", "reasoning")


@dataclass(slots=True)
class ParsedCall:
    """`heads` are the deltas of a stream that have an id or a name: there should be one."""

    id: str = ""
    name: str = ""
    arguments: str = ""
    heads: list[dict[str, Any]] = field(default_factory=list)


def whole_calls(message: dict[str, Any]) -> list[ParsedCall]:
    if message.get("tool_calls") is None:
        return []
    return [
        ParsedCall(take(call, "id", str), take(call, "function.name", str), take(call, "function.arguments", str))
        for call in take(message, "tool_calls", list)
    ]


def join_pieces(calls: dict[int, ParsedCall], delta: dict[str, Any]) -> None:
    """As a client does: the first id and name, and all arguments."""
    if delta.get("tool_calls") is None:
        return
    for piece in take(delta, "tool_calls", list):
        call = calls.setdefault(take(piece, "index", int), ParsedCall())
        function = take(piece, "function", dict) if piece.get("function") is not None else {}
        if piece.get("id") or function.get("name"):
            call.heads.append(piece)
        call.id = call.id or _text_of(piece, "id")
        call.name = call.name or _text_of(function, "name")
        call.arguments += _text_of(function, "arguments")


def reasoning_of(message: dict[str, Any]) -> str:
    """In either of the two names that servers have for it."""
    return next(filter(None, (_text_of(message, name) for name in REASONING_FIELDS)), "")


def _text_of(holder: dict[str, Any], name: str) -> str:
    found = holder.get(name)
    if found is not None and not isinstance(found, str):
        raise Failed(f"{name} is {brief(found)}; it must be a string")
    return found or ""

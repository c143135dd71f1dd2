"""The message of a chat's answer as the OpenAI API writes it: whole, and the `delta` of a chunk.

`reasoning_content` is the field of DeepSeek's API, which clients read.
"""

from __future__ import annotations

from typing import Any

from drivetrain.core.answer import ArgumentsPiece, ContentPiece, ReasoningPiece, ToolCall
from drivetrain.core.results import Choice
from drivetrain.text.answers.told import ToldPiece, told


def message_json(choice: Choice) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None, "annotations": []}
    if choice.message is None:
        return message
    answer = told(choice.message)
    message["content"] = answer.content or (None if answer.tool_calls else "")
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.tool_calls:
        message["tool_calls"] = [call_json(call) for call in answer.tool_calls]
    return message


def call_json(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def delta_json(piece: ToldPiece) -> dict[str, Any]:
    """Joined by `index`, the deltas of a call are what `call_json` gives."""
    if isinstance(piece, ContentPiece):
        return {"content": piece.text}
    if isinstance(piece, ReasoningPiece):
        return {"reasoning_content": piece.text}
    if isinstance(piece, ArgumentsPiece):
        return {"tool_calls": [{"index": piece.index, "function": {"arguments": piece.text}}]}
    function = {"name": piece.name, "arguments": ""}
    return {"tool_calls": [{"index": piece.index, "id": piece.id, "type": "function", "function": function}]}

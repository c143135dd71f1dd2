"""The `input` of `/v1/responses`: a text, or items, as the messages of a chat."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from drivetrain.core.errors import InvalidRequest
from drivetrain.core.kinds import OneOf, String
from drivetrain.core.messages import ImagePart, Part, TextPart
from drivetrain.server.parse.body import Body, Field
from drivetrain.server.parse.custom_tools import ARGUMENT
from drivetrain.server.parse.responses_tools import joined
from drivetrain.server.parse.schema import Anything, Refused, inert
from drivetrain.server.parse.shapes import Several, Tagged
from drivetrain.server.parse.turns import Turns


class Role(StrEnum):
    USER = "user"
    ASSISTANT = "assistant"
    SYSTEM = "system"
    DEVELOPER = "developer"


def _text(name: str, **more: Field) -> Body:
    return Body(name, {"text": Field(String(), "the text", required=True), **more})


_URL = String(non_empty=True)
_NO_FILES = "is not supported: this server keeps no files; send image_url"
_IGNORED = inert(Anything())
_KEPT = {"id": _IGNORED, "status": _IGNORED}
"""What a client sends back with an item of an answer."""

_PARTS = Tagged(
    {
        "input_text": _text("InputText"),
        "input_image": Body(
            "InputImage",
            {
                "image_url": Field(_URL, "a URL or a data URI", required=True),
                "detail": _IGNORED,
                "file_id": Field(Refused((), _NO_FILES), "not supported", refused=True),
            },
        ),
        "output_text": _text("OutputText", annotations=_IGNORED, logprobs=_IGNORED),
        "refusal": Body("Refusal", {"refusal": Field(String(), "the assistant's text", required=True)}),
    },
    refused={"input_file": "only texts and images can be read", "input_audio": "only texts and images can be read"},
)
_CONTENT = Several(_PARTS, text_as="input_text", non_empty=True)
_SUMMARY = Several(Tagged({"summary_text": _text("SummaryText")}))
_THOUGHTS = Several(Tagged({"reasoning_text": _text("ReasoningText"), "text": _text("Text")}))

_RESULT = Body(
    "FunctionCallOutputItem",
    {
        "call_id": Field(String(non_empty=True), "the call that it answers", required=True),
        "output": Field(_CONTENT, "a string or a list of parts", required=True),
        **_KEPT,
    },
)

_BUILT_IN = "only function calls can be read; tools that run in the server are not supported"
INPUT = Several(
    Tagged(
        {
            "message": Body(
                "InputMessage",
                {
                    "role": Field(OneOf(Role), "who says it", required=True),
                    "content": Field(_CONTENT, "a string or a list of parts", required=True),
                    "phase": _IGNORED,
                    **_KEPT,
                },
            ),
            "function_call": Body(
                "FunctionCallItem",
                {
                    "call_id": Field(String(non_empty=True), "what its result answers to", required=True),
                    "name": Field(String(non_empty=True), "the function", required=True),
                    "namespace": Field(String(non_empty=True), "of the function, if it has one"),
                    "arguments": Field(String(), "JSON, as the model wrote it", required=True),
                    **_KEPT,
                },
            ),
            "function_call_output": _RESULT,
            "custom_tool_call": Body(
                "CustomToolCallItem",
                {
                    "call_id": Field(String(non_empty=True), "what its result answers to", required=True),
                    "name": Field(String(non_empty=True), "the tool", required=True),
                    "input": Field(String(), "the text, as the model wrote it", required=True),
                    **_KEPT,
                },
            ),
            "custom_tool_call_output": _RESULT,
            "reasoning": Body(
                "ReasoningItem",
                {
                    "content": Field(_THOUGHTS, "the reasoning"),
                    "summary": Field(_SUMMARY, "read if there is no content"),
                    "encrypted_content": Field(String(), "the reasoning, as this server returns it; read if it is all"),
                    **_KEPT,
                },
            ),
        },
        usual="message",
        refused={
            "item_reference": "this server keeps no items; send the item itself",
            **dict.fromkeys(("file_search_call", "web_search_call", "computer_call", "mcp_call"), _BUILT_IN),
        },
    ),
    text_as="text",
    non_empty=True,
)
"""A text alone is an item of the type `text`."""


def turns_of(items: Sequence[Mapping[str, Any]], instructions: str | None) -> Turns:
    """The messages of a chat. Consecutive items of the assistant make one message.

    Raises `InvalidRequest` for the result of a call that nobody made.
    """
    turns = Turns()
    if instructions is not None:
        turns.add("system", (TextPart(instructions),), "instructions")
    for i, item in enumerate(items):
        _add(turns, item, f"input[{i}]")
    return turns


def encrypted(reasoning: str) -> str:
    """Reasoning as `encrypted_content`: nothing in it is secret here, but clients expect an opaque text."""
    return base64.b64encode(reasoning.encode()).decode()


def _add(turns: Turns, item: Mapping[str, Any], where: str) -> None:
    kind = item["type"]
    if kind == "reasoning":
        turns.reasoned(_reasoning(item, where), where)
    elif kind == "function_call":
        name = joined(item["namespace"], item["name"]) if "namespace" in item else item["name"]
        turns.called(item["call_id"], name, item["arguments"], where)
    elif kind == "text":
        turns.add("user", (TextPart(item["text"]),), "input")
    elif kind == "custom_tool_call":
        turns.called(item["call_id"], item["name"], json.dumps({ARGUMENT: item["input"]}, ensure_ascii=False), where)
    elif kind in ("function_call_output", "custom_tool_call_output"):
        turns.result(item["call_id"], _parts(item["output"]), where, "call_id")
    elif item["role"] is Role.ASSISTANT:
        turns.answered(_parts(item["content"]), where)
    else:
        role = "system" if item["role"] is Role.DEVELOPER else str(item["role"])
        turns.add(role, _parts(item["content"]), where)


def _parts(content: Sequence[Mapping[str, Any]]) -> tuple[Part, ...]:
    return tuple(
        ImagePart(url=part["image_url"]) if part["type"] == "input_image" else TextPart(_text_of(part))
        for part in content
    )


def _text_of(part: Mapping[str, Any]) -> str:
    text: str = part["refusal"] if part["type"] == "refusal" else part["text"]
    return text


def _reasoning(item: Mapping[str, Any], where: str) -> str:
    texts = item.get("content") or item.get("summary")
    if texts:
        return "\n".join(part["text"] for part in texts)
    try:
        return base64.b64decode(item.get("encrypted_content", ""), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        place = f"{where}.encrypted_content"
        raise InvalidRequest(f"{place} was not made by this server; leave it out", param=place) from None

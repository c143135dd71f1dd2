"""The messages and the system text of Anthropic's API, as the messages of a chat."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from drivetrain.core.errors import InvalidRequest
from drivetrain.core.kinds import Boolean, Matching, String
from drivetrain.core.messages import ImagePart, Part, TextPart
from drivetrain.core.tools import JsonObject
from drivetrain.server.parse.body import Body, Field
from drivetrain.server.parse.schema import Anything, inert
from drivetrain.server.parse.shapes import Several, Tagged
from drivetrain.server.parse.turns import Turns, refuse_begun

_IGNORED = inert(Anything())
_CACHED = {"cache_control": _IGNORED}

_TEXT = Body("TextBlock", {"text": Field(String(), "the text", required=True), "citations": _IGNORED, **_CACHED})
_IMAGE = Body(
    "ImageBlock",
    {
        "source": Field(
            Tagged(
                {
                    "base64": Body(
                        "Base64Source",
                        {
                            "media_type": Field(Matching(r"image/[a-z]{3,4}", "such as image/png"), "", required=True),
                            "data": Field(String(non_empty=True), "base64", required=True),
                        },
                    ),
                    "url": Body("UrlSource", {"url": Field(String(non_empty=True), "its address", required=True)}),
                },
                refused={"file": "this server keeps no files; send base64 or a url"},
            ),
            "where the picture is",
            required=True,
        ),
        **_CACHED,
    },
)

_ONLY = "only texts and images can be read"
_RESULT_CONTENT = Several(
    Tagged({"text": _TEXT, "image": _IMAGE}, refused=dict.fromkeys(("document", "search_result"), _ONLY)),
    text_as="text",
)
_SERVER = "tools that run in the server are not supported"

_BLOCKS = {
    "text": _TEXT,
    "image": _IMAGE,
    "tool_use": Body(
        "ToolUseBlock",
        {
            "id": Field(String(non_empty=True), "what its result answers to", required=True),
            "name": Field(String(non_empty=True), "the tool", required=True),
            "input": Field(JsonObject(), "as the model gave it", required=True),
            "caller": _IGNORED,
            **_CACHED,
        },
    ),
    "tool_result": Body(
        "ToolResultBlock",
        {
            "tool_use_id": Field(String(non_empty=True), "the call that it answers", required=True),
            "content": Field(_RESULT_CONTENT, "a string or blocks of text and images"),
            "is_error": Field(Boolean(), "the call failed: the model is told so"),
            **_CACHED,
        },
    ),
    "thinking": Body(
        "ThinkingBlock",
        {"thinking": Field(String(), "the reasoning", required=True), "signature": _IGNORED, **_CACHED},
    ),
}
_REFUSED = {
    "document": _ONLY,
    "search_result": _ONLY,
    "redacted_thinking": "this server cannot read it; leave it out",
    "server_tool_use": _SERVER,
    "web_search_tool_result": _SERVER,
}


def _said_in(name: str, kinds: Sequence[str]) -> Body:
    blocks = Tagged({kind: _BLOCKS[kind] for kind in kinds}, refused=_REFUSED)
    content = Several(blocks, text_as="text", non_empty=True)
    return Body(name, {"content": Field(content, "a string or a list of blocks", required=True)})


MESSAGE_LIST = Several(
    Tagged(
        {
            "user": _said_in("UserMessage", ("text", "image", "tool_result")),
            "assistant": _said_in("AssistantMessage", ("text", "tool_use", "thinking")),
            "system": _said_in("SystemMessage", ("text",)),
        },
        tag="role",
    ),
    non_empty=True,
)
SYSTEM = Several(Tagged({"text": _TEXT}), text_as="text")


BILLING = "x-anthropic-billing-header:"


def begins_with_billing(system: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the first block is the one line by which Claude Code's maker counts. It says nothing to a model and may
    differ each time: with it in front, no turn shares the prompt of the one before."""
    return bool(system) and system[0]["text"].startswith(BILLING) and "\n" not in system[0]["text"].strip()


def turns_of(messages: Sequence[Mapping[str, Any]], system: Sequence[Mapping[str, Any]]) -> Turns:
    """The messages of a chat. Results of tools are messages of their own; consecutive ones of the assistant, one; and
    all of the system, wherever they stand, one in front: most templates have no other place for them.

    Raises `InvalidRequest` for the result of a call that nobody made, and `Unsupported` for an answer that is begun.
    """
    turns = Turns()
    among = [block for message in messages if message["role"] == "system" for block in message["content"]]
    said = [(i, message) for i, message in enumerate(messages) if message["role"] != "system"]
    if not said:
        raise InvalidRequest("messages has none of the user or the assistant", param="messages")
    texts = [block["text"] for block in (*system, *among) if block["text"]]
    if texts:
        turns.add("system", (TextPart("\n".join(texts)),), "system" if any(b["text"] for b in system) else "messages")
    for i, message in said:
        add = _assistant if message["role"] == "assistant" else _user
        add(turns, message["content"], f"messages[{i}]")
    refuse_begun(*said[-1])
    return turns


def _user(turns: Turns, blocks: Sequence[Mapping[str, Any]], where: str) -> None:
    """The results of calls come first, as templates have it; the API asks for that order too."""
    said: list[Part] = []
    for i, block in enumerate(blocks):
        if block["type"] == "tool_result":
            turns.result(block["tool_use_id"], _result(block), f"{where}.content[{i}]", "tool_use_id")
        else:
            said.append(_part(block))
    if said:
        turns.add("user", said, where)


def _assistant(turns: Turns, blocks: Sequence[Mapping[str, Any]], where: str) -> None:
    for i, block in enumerate(blocks):
        if block["type"] == "tool_use":
            arguments = json.dumps(block["input"], ensure_ascii=False)
            turns.called(block["id"], block["name"], arguments, f"{where}.content[{i}]")
        elif block["type"] == "thinking":
            turns.reasoned(block["thinking"], where)
        else:
            turns.answered((_part(block),), where)


def _result(block: Mapping[str, Any]) -> list[Part]:
    content = [_part(part) for part in block.get("content", ())]
    return [TextPart("Error: "), *content] if block.get("is_error") else content


def _part(block: Mapping[str, Any]) -> Part:
    if block["type"] == "text":
        return TextPart(block["text"])
    source = block["source"]
    if source["type"] == "url":
        return ImagePart(url=source["url"])
    return ImagePart(url=f"data:{source['media_type']};base64,{source['data']}")

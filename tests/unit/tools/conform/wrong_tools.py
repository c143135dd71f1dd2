"""Wrong servers for the cases of tools and reasoning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from toy_server import Faults, Reply
from wrongs import Make, Wrong, answers, asked, choices, chunks, ignores, messages, says, streams

from drivetrain.tools.conform.cases.calling import named


def _calls(change: Callable[[list[dict[str, Any]]], Any]) -> Make:
    """The calls of each whole answer are changed in place."""

    def each(choice: dict[str, Any], body: Any) -> None:
        if choice.get("message", {}).get("tool_calls"):
            change(choice["message"]["tool_calls"])

    return choices(each)


def _pieces(change: Callable[[dict[str, Any]], Any]) -> Make:
    """Each piece of a call in a stream is changed in place."""

    def each(choice: dict[str, Any]) -> None:
        for piece in choice.get("delta", {}).get("tool_calls", ()):
            change(piece)

    return chunks(each)


def _always_the_last(body: dict[str, Any]) -> None:
    if body.get("tools"):
        body["tool_choice"] = named(body["tools"][-1]["function"]["name"])


def _says_tool_calls(path: str, body: Any, made: Reply) -> Reply:
    if made.status == 200 and isinstance(body, dict) and body.get("tools"):
        for document in made.events[:-1] if made.events else [made.document]:
            for choice in document["choices"]:
                choice["finish_reason"] = choice["finish_reason"] and "tool_calls"
    return made


def _fewer_pieces(choice: dict[str, Any]) -> None:
    pieces = choice.get("delta", {}).get("tool_calls", [])
    if pieces and pieces[0]["function"]["arguments"].endswith("}"):
        choice["delta"] = {}


def _again(piece: dict[str, Any]) -> None:
    piece["id"] = "call_again"


def _stop_for_calls(choice: dict[str, Any]) -> None:
    if choice.get("finish_reason") == "tool_calls":
        choice["finish_reason"] = "stop"


def _one_more(events: list[Any]) -> None:
    for event in events[:-1]:
        if event.get("usage"):
            event["usage"]["completion_tokens"] += 1


TOOLS = (
    Wrong(
        "always calls the last",
        asked(_always_the_last),
        says("which was not offered", "tools", "named", "allowed_auto")
        | {"tools.none": "a tool is called", "tools.round_trip": "called again"},
    ),
    Wrong(
        "says tool_calls",
        lambda: Faults(reply=_says_tool_calls),
        {
            "tools.auto": "there is no call",
            "tools.cut_off": "not 'length'",
            "tools.round_trip_streamed": "without a call",
        },
    ),
    Wrong(
        "calls twice",
        _calls(lambda calls: calls.append({**calls[0], "id": "call_twice"})),
        {"tools.one_at_a_time": "2 calls", "tools.ids": "share an id", "tools.streamed": "whole"},
    ),
    Wrong("no type", _calls(lambda calls: calls[0].pop("type")), {"tools.shape": "no type"}),
    Wrong(
        "loses a piece",
        chunks(_fewer_pieces),
        says("is not JSON", "tools", "streamed", "required", "allowed", "strict"),
    ),
    Wrong("ids again", _pieces(_again), {"tools.streamed_heads": "times, not once"}),
    Wrong("stops in streams", chunks(_stop_for_calls), {"tools.streamed_finish": "not one tool_calls"}),
    Wrong("counts one more in streams", streams(_one_more), {"tools.streamed_usage": "streamed ParsedUsage"}),
)


def _as_user(message: dict[str, Any]) -> None:
    if message.get("role") == "tool":
        message["role"] = "user"


def _unread(message: dict[str, Any]) -> None:
    if message.get("role") == "tool":
        message["content"] = ""


ROUNDS = (
    Wrong("results of nobody", messages(_as_user), says("was accepted", "tools", "call_id_unknown", "result_alone")),
    Wrong("results are not read", messages(_unread), {"tools.result_is_read": "does not reach the model"}),
)


def _marked(choice: dict[str, Any], body: Any) -> None:
    thought = choice.get("message", {}).pop("reasoning_content", None)
    if thought:
        choice["message"]["content"] = f"<think>{thought}</think>{choice['message']['content']}"


def _as_content(choice: dict[str, Any]) -> None:
    if "reasoning_content" in choice.get("delta", {}):
        choice["delta"] = {"content": choice["delta"]["reasoning_content"]}


def _counts_more(events: list[Any]) -> None:
    for event in events[:-1]:
        if event.get("usage"):
            event["usage"]["completion_tokens_details"] = {"reasoning_tokens": 10**6}


REASONING = (
    Wrong("markers in the content", choices(_marked), {"reasoning.apart": "the content has <think>"}),
    Wrong("reasoning is content in streams", chunks(_as_content), {"reasoning.streamed": "streamed ''"}),
    Wrong(
        "reasoning is not counted",
        answers(lambda d, b: d.get("usage", {}).pop("completion_tokens_details", None)),
        {"reasoning.usage": "has no completion_tokens_details"},
    ),
    Wrong("more reasoning than tokens", streams(_counts_more), {"reasoning.usage_streamed": "reasoning tokens of"}),
    Wrong(
        "reasons without bounds",
        ignores("max_reasoning_tokens", "reasoning_effort", "response_format"),
        {
            "reasoning.budget": "is ignored",
            "reasoning.effort_number": "was accepted",
            "reasoning.response_format": "not JSON",
        },
    ),
)

"""The toy's `/v1/responses` and `/v1/messages`: their bodies as chats, and what it says in their forms."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from toy_answers import Asked, Said
from toy_rules import CHAT, Refused, check
from toy_tools import check_format, check_results, check_tools

Rules = dict[str, Callable[[Any], bool]]


def _is(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kind)


RESPONSES: Rules = {
    "model": _is(str), "input": lambda v: isinstance(v, (str, list)) and bool(v), "instructions": _is(str),
    "max_output_tokens": CHAT["max_tokens"], "temperature": CHAT["temperature"], "stream": _is(bool),
    "tools": _is(list), "tool_choice": _is((str, dict)), "text": _is(dict),  # type: ignore[arg-type]
    "parallel_tool_calls": _is(bool), "store": lambda v: v is False, "reasoning": _is(dict), "include": _is(list),
    "prompt_cache_key": _is(str), "client_metadata": _is(dict),
}  # fmt: skip
MESSAGES: Rules = {
    "model": _is(str), "messages": lambda v: isinstance(v, list) and bool(v),
    "system": _is((str, list)),  # type: ignore[arg-type]
    "max_tokens": lambda v: type(v) is int and v > 0, "temperature": CHAT["temperature"], "stream": _is(bool),
    "tools": _is(list), "tool_choice": _is(dict), "stop_sequences": CHAT["stop"], "metadata": _is(dict),
    "thinking": _is(dict), "output_config": _is(dict),
    "context_management": lambda v: all(edit["keep"] == "all" for edit in v["edits"]),
}  # fmt: skip
MOST_TOKENS = 100
"""Of an answer whose limit is above what the context leaves."""

COUNT: Rules = {name: MESSAGES[name] for name in ("model", "messages", "system", "tools")}


def _said(chat: dict[str, Any]) -> tuple[Asked, Said]:
    checked = check(chat, CHAT, "model", "messages")
    check_tools(checked)
    check_results(checked["messages"])
    check_format(checked.get("response_format", {}))
    asked = Asked(checked, chat=True)
    return asked, asked.choices()[0]


# Responses


def response(body: Any) -> tuple[Any, list[Any] | None]:
    """The document, or the events of a stream."""
    given = check(body, RESPONSES, "model", "input")
    asked, choice = _said(_chat_of_response(given))
    usage = asked.usage([choice])
    told = {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"]}
    items = [_item(choice, index) for index in range(max(1, len(choice.calls)))]
    cut = choice.reason == "length"
    document = {
        "id": f"resp-{asked.id}",
        "object": "response",
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "error": None,
        "output": items,
        "usage": {**told, "total_tokens": usage["total_tokens"]},
    }
    return document, _response_events(document) if given.get("stream") else None


def _chat_of_response(given: dict[str, Any]) -> dict[str, Any]:
    said = [{"role": "system", "content": given["instructions"]}] if "instructions" in given else []
    items = given["input"]
    said += [{"role": "user", "content": items}] if isinstance(items, str) else [_message_of(item) for item in items]
    chat: dict[str, Any] = {
        "model": given["model"],
        "messages": said,
        "max_tokens": given.get("max_output_tokens", 100),
    }
    if "tools" in given:
        chat["tools"] = [{"type": "function", "function": tool} for tool in _functions(given["tools"])]
    if isinstance(given.get("tool_choice"), dict):
        chat["tool_choice"] = {"type": "function", "function": {"name": given["tool_choice"]["name"]}}
    if form := given.get("text", {}).get("format"):
        chat["response_format"] = {"type": form["type"], "json_schema": {"schema": form.get("schema")}}
    return chat | {name: given[name] for name in ("temperature",) if name in given}


def _functions(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those in namespaces too. The toy never calls a tool that takes a text."""
    found = []
    for tool in tools:
        if tool["type"] in {"function", "namespace"}:
            found += tool.get("tools", [tool])
        elif not (tool["type"] == "custom" or tool.get("external_web_access") is False):
            raise Refused("tools has a tool of an unknown type", "tools")
    return found


def _message_of(item: Any) -> dict[str, Any]:
    kind = item.get("type", "message") if isinstance(item, dict) else None
    if kind == "message":
        return {"role": item.get("role"), "content": _text_of(item.get("content"))}
    if kind in {"function_call", "custom_tool_call"}:
        call = {"id": item["call_id"], "type": "function", "function": item}
        return {"role": "assistant", "tool_calls": [call]}
    if kind in {"function_call_output", "custom_tool_call_output"}:
        return {"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]}
    raise Refused("input has an item of an unknown type", "input")


def _text_of(content: Any) -> Any:
    return "".join(part["text"] for part in content) if isinstance(content, list) else content


def _item(choice: Said, index: int) -> dict[str, Any]:
    if choice.calls:
        call = choice.calls[index]
        told = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
        return {"type": "function_call", "id": f"fc_{call.id}", **told}
    part = {"type": "output_text", "text": choice.text, "annotations": []}
    return {"type": "message", "id": "msg_1", "role": "assistant", "content": [part]}


def _response_events(document: dict[str, Any]) -> list[Any]:
    begun = {**document, "status": "in_progress", "output": [], "usage": None}
    events: list[dict[str, Any]] = [{"type": "response.created", "response": begun}]
    for index, item in enumerate(document["output"]):
        place = {"item_id": item["id"], "output_index": index}
        events.append({"type": "response.output_item.added", "output_index": index, "item": item})
        if item["type"] == "message":
            text = item["content"][0]["text"]
            events += [{"type": "response.output_text.delta", **place, "delta": part} for part in _parts(text)]
            events.append({"type": "response.output_text.done", **place, "text": text})
        else:
            name, given = "response.function_call_arguments", item["arguments"]
            events += [{"type": f"{name}.delta", **place, "delta": part} for part in _parts(given)]
            events.append({"type": f"{name}.done", **place, "arguments": given})
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    events.append({"type": f"response.{document['status']}", "response": document})
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def _parts(text: str) -> list[str]:
    return [text[at : at + 3] for at in range(0, len(text), 3)]


# Messages


def message(body: Any) -> tuple[Any, list[Any] | None]:
    given = check(body, MESSAGES, "model", "messages", "max_tokens")
    asked, choice = _said(_chat_of_messages(given))
    usage = asked.usage([choice])
    stop = next((stop for stop in given.get("stop_sequences", []) if choice.reason == "stop"), None)
    reasons = {"length": "max_tokens", "tool_calls": "tool_use", "stop": "stop_sequence" if stop else "end_turn"}
    document = {
        "id": f"msg-{asked.id}",
        "type": "message",
        "role": "assistant",
        "content": _blocks(choice),
        "stop_reason": reasons[choice.reason],
        "stop_sequence": stop,
        "usage": {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"]},
    }
    return document, _message_events(document) if given.get("stream") else None


def counted(body: Any) -> tuple[Any, None]:
    given = check(body, COUNT, "model", "messages")
    asked, choice = _said(_chat_of_messages(given))
    return {"input_tokens": asked.usage([choice])["prompt_tokens"]}, None


def _chat_of_messages(given: dict[str, Any]) -> dict[str, Any]:
    said = [{"role": "system", "content": _text_of(given["system"])}] if "system" in given else []
    for one in given["messages"]:
        said += _messages_of(one)
    said.sort(key=lambda one: one["role"] != "system")
    limit = min(given.get("max_tokens", 1), MOST_TOKENS)
    chat: dict[str, Any] = {"model": given["model"], "messages": said, "max_tokens": limit}
    for tool in given.get("tools", ()):
        function = {"name": tool["name"], "parameters": tool["input_schema"]}
        chat.setdefault("tools", []).append({"type": "function", "function": function})
    if given.get("tool_choice", {}).get("type") == "tool":
        chat["tool_choice"] = {"type": "function", "function": {"name": given["tool_choice"]["name"]}}
    if "stop_sequences" in given:
        chat["stop"] = given["stop_sequences"]
    return chat | {name: given[name] for name in ("temperature",) if name in given}


def _messages_of(one: Any) -> list[dict[str, Any]]:
    content = one.get("content") if isinstance(one, dict) else None
    if isinstance(content, str):
        return [{"role": one.get("role"), "content": content}]
    made: list[dict[str, Any]] = []
    for block in content or ():
        if block["type"] == "tool_use":
            function = {"name": block["name"], "arguments": json.dumps(block["input"])}
            call = {"id": block["id"], "type": "function", "function": function}
            made.append({"role": "assistant", "tool_calls": [call]})
        elif block["type"] == "tool_result":
            told = _text_of(block["content"])
            made.append({"role": "tool", "tool_call_id": block["tool_use_id"], "content": told})
        elif block["type"] == "text":
            made.append({"role": one["role"], "content": block["text"]})
        else:
            raise Refused("messages has a block of an unknown type", "messages")
    return made


def _blocks(choice: Said) -> list[dict[str, Any]]:
    if not choice.calls:
        return [{"type": "text", "text": choice.text}]
    return [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}
        for call in choice.calls
    ]


def _message_events(document: dict[str, Any]) -> list[Any]:
    events: list[Any] = [{"type": "message_start", "message": {**document, "content": [], "stop_reason": None}}]
    for index, block in enumerate(document["content"]):
        is_text = block["type"] == "text"
        empty = {"type": "text", "text": ""} if is_text else {**block, "input": {}}
        events.append({"type": "content_block_start", "index": index, "content_block": empty})
        for part in _parts(block["text"] if is_text else json.dumps(block["input"])):
            delta = (
                {"type": "text_delta", "text": part} if is_text else {"type": "input_json_delta", "partial_json": part}
            )
            events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    ended = {name: document[name] for name in ("stop_reason", "stop_sequence")}
    events.append(
        {"type": "message_delta", "delta": ended, "usage": {"output_tokens": document["usage"]["output_tokens"]}}
    )
    return [*events, {"type": "message_stop"}]

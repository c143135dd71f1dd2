"""Wrong servers for the cases of `/v1/responses` and `/v1/messages`, and of the agents that speak them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from toy_server import Faults, Reply
from wrongs import Make, Wrong, answers, ignores, says

from drivetrain.tools.conform.cases import messages, responses


def _events(path: str, change: Callable[[list[Any]], Any]) -> Make:
    """The events of this endpoint's streams are changed in place; or others are returned."""

    def reply(at: str, body: Any, made: Reply) -> Reply:
        if at.endswith(path) and made.events is not None:
            made.events = copy.deepcopy(made.events)
            made.events = change(made.events) or made.events
        return made

    return lambda: Faults(reply=reply)


def _lax(path: str) -> Make:
    """Whatever it is asked, the endpoint answers."""

    def reply(at: str, body: Any, made: Reply) -> Reply:
        return Reply(200, {}) if at.endswith(path) and made.status >= 400 else made

    return lambda: Faults(reply=reply)


def _set(path: str, **fields: Any) -> Make:
    return answers(lambda document, body: document.update(fields), path)


def _of(events: list[Any], kind: str) -> list[Any]:
    return [event for event in events if event["type"] == kind]


def _says_nothing(document: Any, body: Any) -> None:
    for item in document.get("output", ()):
        for part in item.get("content", ()):
            part["text"] = ""
    for block in document.get("content", ()):
        if "text" in block:
            block["text"] = ""


def _other_input(document: Any, body: Any) -> None:
    for item in document.get("output", ()):
        if "arguments" in item:
            item["arguments"] = '{"open": 5}'
    for block in document.get("content", ()):
        if "input" in block:
            block["input"] = {"open": 5}


def _without(kind: str) -> Callable[[list[Any]], list[Any]]:
    return lambda events: [event for event in events if event["type"] != kind]


def _renumbered(events: list[Any]) -> None:
    events[2]["sequence_number"] = 9


def _shortened(kind: str, *place: str) -> Callable[[list[Any]], None]:
    def change(events: list[Any]) -> None:
        for event in _of(events, kind)[:1]:
            holder = event
            for name in place[:-1]:
                holder = holder[name]
            holder[place[-1]] = ""

    return change


_R, _M = "/responses", "/messages"
_REFUSALS = [case.id.partition(".")[2] for case in responses.CASES if ".refuse_" in case.id]
_M_REFUSALS = [case.id.partition(".")[2] for case in messages.CASES if ".refuse_" in case.id]

FACES = (
    Wrong("response of another kind", _set(_R, object="chat.completion"), says("object is", "responses", "shape")),
    Wrong("response usage", _set(_R, usage={"input_tokens": 1, "output_tokens": 8, "total_tokens": 7}),
          says("does not add up", "responses", "shape")),
    Wrong("response says nothing", answers(_says_nothing, _R),
          says("the chat", "responses", "same_text", "instructions")
          | says("texts differ", "responses", "streamed_text")),
    Wrong("response without a reason", _set(_R, status="incomplete", incomplete_details={"reason": "no"}),
          says("incomplete_details.reason is", "responses", "length")),
    Wrong("response events without a number", _events(_R, _renumbered), says("the numbers are", "responses", "events")),
    Wrong("response items never done", _events(_R, _without("response.output_item.done")),
          says("the numbers are|never done", "responses", "events")),
    Wrong("response delta lost", _events(_R, _shortened("response.output_text.delta", "delta")),
          says("texts differ", "responses", "streamed_text")),
    Wrong("response call that does not fit", answers(_other_input, _R), says("open", "responses", "call")),
    Wrong("response arguments lost", _events(_R, _shortened("response.function_call_arguments.delta", "delta")),
          says("not the arguments", "responses", "call")),
    Wrong("response formats ignored", ignores("text"), says("text", "responses", "schema")),
    Wrong("response refuses nothing", _lax(_R), says("was accepted", "responses", *_REFUSALS, "result")),
    Wrong("message of another kind", _set(_M, type="completion"), says("type is", "messages", "shape")),
    Wrong("message says nothing", answers(_says_nothing, _M),
          says("the chat", "messages", "same_text", "system") | says("streamed", "messages", "streamed_text")),
    Wrong("message that ends otherwise", _set(_M, stop_reason="tool_use"),
          says("stop_reason", "messages", "length", "stop", "shape")),
    Wrong("message blocks never stopped", _events(_M, _without("content_block_stop")),
          says("block", "messages", "events")),
    Wrong("message without an end", _events(_M, _without("message_stop")), says("last events", "messages", "events")),
    Wrong("message delta lost", _events(_M, _shortened("content_block_delta", "delta", "text")),
          says("streamed", "messages", "streamed_text")),
    Wrong("message call that does not fit", answers(_other_input, _M), says("open", "messages", "call")),
    Wrong("message counts wrongly", _set("/count_tokens", input_tokens=1),
          says("1 tokens are counted", "messages", "count")),
    Wrong("message refuses nothing", _lax(_M), says("was accepted", "messages", *_M_REFUSALS, "result", "error")),
)  # fmt: skip


def _knows_no(word: str) -> Make:
    """What has this in its body is refused."""

    def reply(at: str, body: Any, made: Reply) -> Reply:
        error = {"message": "this is not known", "type": "invalid_request_error", "param": None, "code": None}
        return Reply(400, {"error": error}) if word in str(body) else made

    return lambda: Faults(reply=reply)


def _cut(events: list[Any]) -> list[Any]:
    return events[:-1]


def _forgets(events: list[Any]) -> None:
    for event in events[:-1]:
        if event.get("usage"):
            event["usage"]["prompt_tokens_details"] = {"cached_tokens": 1}


def _no_prompt(events: list[Any]) -> None:
    for event in events[:-1]:
        if event.get("usage"):
            event["usage"]["prompt_tokens"] = 0


_CLAUDE, _CODEX = ("claude_first_turn", "claude_results"), ("codex_first_turn", "codex_results")
_CHATS = ("system_messages", "parts_of_text", "parallel_results")

AGENTS = (
    Wrong("knows no edit of the context", _knows_no("clear_thinking"), says("not known", "agents", *_CLAUDE)),
    Wrong("knows no billing line", _knows_no("cc_version"), says("not known", "agents", *_CLAUDE, "claude_count")),
    Wrong("agent's message without an end", _events(_M, _without("message_stop")),
          says("last events", "agents", *_CLAUDE)),
    Wrong("agent's message counted wrongly", _set("/count_tokens", input_tokens=1),
          says("1 tokens are counted", "agents", "claude_count")),
    Wrong("knows no namespace", _knows_no("namespace"), says("not known", "agents", *_CODEX)),
    Wrong("agent's response without an end", _events(_R, _cut), says("last event is", "agents", *_CODEX)),
    Wrong("chats count no prompt", _events("/chat/completions", _no_prompt),
          says("counts no prompt", "agents", *_CHATS)),
    Wrong("cached beginnings are forgotten", _events("/chat/completions", _forgets),
          says("1 tokens came from the cache", "agents", "continued")),
    Wrong("no names of special tokens", _set("/tokenizer_info", eos_token=5), says("eos_token is 5", "tokens", "info")),
)  # fmt: skip

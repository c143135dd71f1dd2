"""What coding agents send: the fields and shapes of real ones, made again with prompts as short as ours.

Each area above asks for one thing at a time; an agent sends all of them at once, and what fails one field fails it.
"""

from __future__ import annotations

from typing import Any

from drivetrain.tools.conform.answers import CHAT, ParsedAnswer, read_named
from drivetrain.tools.conform.case import BY_ENDPOINT, BY_FIELD, Area, Cases
from drivetrain.tools.conform.cases.calling import DOOR, PAINT, check_call
from drivetrain.tools.conform.exchange import RecordedExchange
from drivetrain.tools.conform.reading import brief, has_room, take
from drivetrain.tools.conform.requester import MAX_TOKENS
from drivetrain.tools.conform.survey import answered
from drivetrain.tools.conform.trial import Trial
from drivetrain.tools.conform.verdict import NotOffered, ensure

CASES = Cases(Area.AGENTS, BY_ENDPOINT)
case = CASES.case

TASK = "Open the door."
RULES = "Be brief."
SOON = [" ", "e", "a", "o", ".", "\n"]
"""Stops of an answer whose limit is that of a real agent: any model says one of them before long."""

_EPHEMERAL = {"type": "ephemeral"}
_TOOLS = [DOOR["function"], PAINT["function"]]


# Claude Code


def _claude(t: Trial, turns: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    tools = [
        {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]}
        for tool in _TOOLS
    ]
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.0.1a2; cc_entrypoint=cli; cch=3c4d5;"},
        {"type": "text", "text": RULES, "cache_control": _EPHEMERAL},
    ]
    asked = [{"type": "text", "text": "<system-reminder>\nIt is Monday.\n</system-reminder>"}, _text(TASK)]
    return {
        "model": t.model,
        "messages": [
            {"role": "user", "content": asked},
            {"role": "system", "content": "There are no other agents."},
            *turns,
        ],
        "system": system,
        "tools": tools,
        **fields,
    }


_ANSWER = {
    "max_tokens": 32_000,
    "stop_sequences": SOON,
    "metadata": {"user_id": '{"device_id":"0","session_id":"0"}'},
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
    "stream": True,
}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text, "cache_control": _EPHEMERAL}


async def _messages(t: Trial, body: dict[str, Any], path: str = "/messages") -> RecordedExchange:
    headers = {
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27",
        **({"x-api-key": t.client.key} if t.client.key else {}),
    }
    exchange = await t.ask("POST", f"{t.base}{path}?beta=true", body, headers=headers)
    has_room(exchange)
    answered(exchange)
    return exchange


async def _message_ends(t: Trial, turns: list[dict[str, Any]]) -> None:
    events = [e for e in read_named(await _messages(t, _claude(t, turns, **_ANSWER))) if e["type"] != "ping"]
    names = [event["type"] for event in events]
    ensure(names[0] == "message_start", f"the first event is {names[0]}")
    ensure(names[-2:] == ["message_delta", "message_stop"], f"the last events are {brief(names[-2:])}")
    reason = take(events[-2], "delta.stop_reason", str)
    ended = {"end_turn", "stop_sequence", "tool_use", "max_tokens", "model_context_window_exceeded"}
    ensure(reason in ended, f"stop_reason is {reason!r}")


@case("claude_first_turn",
      asks="a message as Claude Code sends it: a system message behind the user's, a billing line, max_tokens 32000, "
           "thinking, effort and an edit of the context that does nothing",
      holds="a whole stream of events")  # fmt: skip
async def _claude_first(t: Trial) -> None:
    await _message_ends(t, [])


@case("claude_results", asks="its second turn: two calls in one message, and both results, one of them as blocks",
      holds="a whole stream of events")  # fmt: skip
async def _claude_results(t: Trial) -> None:
    calls = [
        {"type": "tool_use", "id": "call_1", "name": "set_door", "input": {"open": True}},
        {"type": "tool_use", "id": "call_2", "name": "paint_door", "input": {"colour": "red", "coats": 1}},
    ]
    results = [
        {"tool_use_id": "call_1", "type": "tool_result", "content": "It is open."},
        {"tool_use_id": "call_2", "type": "tool_result", "content": [_text("It has no paint.")], "is_error": True},
    ]
    await _message_ends(t, [{"role": "assistant", "content": calls}, {"role": "user", "content": results}])


@case("claude_count", asks="count_tokens of its first turn", holds="as many as the message's usage counts")
async def _claude_count(t: Trial) -> None:
    counted = await _messages(t, _claude(t, []), "/messages/count_tokens")
    tokens = take(counted.json(), "input_tokens", int)
    exchange = await _messages(t, _claude(t, [], max_tokens=MAX_TOKENS))
    usage = take(exchange.json(), "usage", dict)
    used = take(usage, "input_tokens", int) + int(usage.get("cache_read_input_tokens") or 0)
    ensure(tokens == used, f"{tokens} tokens are counted; the message's usage has {used}")


# Codex


def _codex(t: Trial, items: list[dict[str, Any]]) -> dict[str, Any]:
    def said(role: str, *texts: str) -> dict[str, Any]:
        parts = [{"type": "input_text", "text": text} for text in texts]
        return {"type": "message", "id": f"msg_{role}", "role": role, "content": parts}

    door, paint = ({"type": "function", **tool, "strict": False} for tool in _TOOLS)
    return {
        "model": t.model,
        "input": [said("developer", RULES), said("developer", "No skills.", "No sandbox."), said("user", TASK), *items],
        "tools": [
            door,
            {"type": "namespace", "name": "shed", "description": "the shed", "tools": [paint]},
            {"type": "custom", "name": "note", "description": "write a note", "format": {"type": "text"}},
            {"type": "web_search", "external_web_access": False},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "session",
        "client_metadata": {"session_id": "session", "turn_id": "turn"},
        "stream": True,
        "max_output_tokens": MAX_TOKENS,
    }


async def _response_ends(t: Trial, items: list[dict[str, Any]]) -> None:
    exchange = await t.post("/responses", _codex(t, items))
    has_room(exchange)
    answered(exchange)
    events = read_named(exchange)
    ensure(events[0]["type"] == "response.created", f"the first event is {events[0]['type']}")
    last = events[-1]["type"]
    ensure(last in {"response.completed", "response.incomplete"}, f"the last event is {last}")


@case("codex_first_turn",
      asks="a response as Codex asks for it: two developer messages, a namespace of tools, a custom tool, a web search "
           "without access, client_metadata, reasoning to be included",
      holds="a whole stream of events")  # fmt: skip
async def _codex_first(t: Trial) -> None:
    await _response_ends(t, [])


@case("codex_results", asks="its second turn: a call of a function, one in a namespace, one of a custom tool, results",
      holds="a whole stream of events")  # fmt: skip
async def _codex_results(t: Trial) -> None:
    called = {"type": "function_call", "status": "completed"}
    told = {"type": "function_call_output"}
    paint = {"name": "paint_door", "namespace": "shed", "arguments": '{"colour": "red", "coats": 1}'}
    items = [
        {**called, "id": "fc_1", "call_id": "call_1", "name": "set_door", "arguments": '{"open": true}'},
        {**called, "id": "fc_2", "call_id": "call_2", **paint},
        {
            "type": "custom_tool_call",
            "status": "completed",
            "call_id": "call_3",
            "name": "note",
            "input": "It is done.",
        },
        {**told, "id": "fco_1", "call_id": "call_1", "output": "It is open."},
        {**told, "id": "fco_2", "call_id": "call_2", "output": "It is red."},
        {"type": "custom_tool_call_output", "call_id": "call_3", "output": "Noted."},
    ]
    await _response_ends(t, items)


# opencode, Qwen Code and Continue

_CALLS = [
    {"id": "call_1", "type": "function", "function": {"name": "set_door", "arguments": '{"open":true}'}},
    {
        "id": "call_2",
        "type": "function",
        "function": {"name": "paint_door", "arguments": '{"colour":"red","coats":1}'},
    },
]


async def _chat(t: Trial, *messages: dict[str, Any], **fields: Any) -> ParsedAnswer:
    told = {"stream_options": {"include_usage": True}, "tools": [DOOR, PAINT], **fields}
    answer = await t.stream(CHAT, messages=list(messages), **told)
    ensure(answer.done, "the stream does not end with [DONE]")
    ensure(answer.counted.prompt > 0, "the usage of the stream counts no prompt")
    cut = answer.first.reason == "length"
    for call in answer.first.calls[:-1] if cut else answer.first.calls:
        check_call(call, [DOOR, PAINT])
    return answer


def _said(role: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


@case("system_messages", asks="several system messages before the user's, with tools", offered=BY_FIELD,
      holds="a whole stream, with its usage")  # fmt: skip
async def _system_messages(t: Trial) -> None:
    await _chat(t, _said("system", RULES), _said("system", "It is Monday."), _said("user", TASK), tool_choice="auto")


@case("parts_of_text", asks="messages of one text part each, and an answer that the client made up", offered=BY_FIELD,
      holds="a whole stream, with its usage")  # fmt: skip
async def _parts_of_text(t: Trial) -> None:
    turns = (_said("user", _parts("The door is blue.")), _said("assistant", "Got it."), _said("user", _parts(TASK)))
    await _chat(t, _said("system", RULES), *turns)


def _parts(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}]


@case("parallel_results", asks="two calls in one message without content, and their results, as text and as parts",
      holds="a whole stream, with its usage", offered=BY_FIELD)  # fmt: skip
async def _parallel_results(t: Trial) -> None:
    asked = (_said("system", RULES), _said("user", TASK))
    for content in (None, ""):
        called = _said("assistant", content, tool_calls=_CALLS)
        first = _said("tool", "It is open.", tool_call_id="call_1")
        await _chat(t, *asked, called, first, _said("tool", _parts("It is red."), tool_call_id="call_2"))


@case("continued", asks="a turn, and the next one, which begins with all of it", offered=BY_FIELD,
      holds="cached_tokens of the second counts most of what the first asked")  # fmt: skip
async def _continued(t: Trial) -> None:
    asked = (_said("system", RULES), _said("user", f"{TASK} {'Then close it and open it again. ' * 12}"))
    first = await _chat(t, *asked)
    answer = _said("assistant", "It is open.")
    second = await _chat(t, *asked, answer, _said("user", "Is it?"))
    cached = second.counted.cached
    if not cached:
        raise NotOffered("usage counts no cached_tokens")
    ensure(
        cached * 2 > first.counted.prompt,
        f"{cached} tokens came from the cache, of the {first.counted.prompt} that the turn before had asked",
    )

"""The way of a call and back: the call and its result are sent as messages, and the answer is text."""

from __future__ import annotations

from typing import Any

from drivetrain.tools.conform.answers import CHAT, ParsedAnswer
from drivetrain.tools.conform.calls import ParsedCall
from drivetrain.tools.conform.case import BY_FIELD, Area, Cases
from drivetrain.tools.conform.cases.calling import ASK, DOOR, call_fields, made_calls
from drivetrain.tools.conform.reading import refused
from drivetrain.tools.conform.trial import Trial
from drivetrain.tools.conform.verdict import ensure

CASES = Cases(Area.TOOLS, BY_FIELD, needs=CHAT)
case = CASES.case

ROUND_TOKENS = 32
RESULT = '{"open": true}'
STRANGER = "call_nobody_made"


async def _call(t: Trial) -> ParsedCall:
    answer = await t.generate(CHAT, **call_fields(tool_choice="required"))
    return made_calls(answer.first, [DOOR])[0]


def _messages(call: ParsedCall, result: str, answers: str) -> list[dict[str, Any]]:
    function = {"name": call.name, "arguments": call.arguments}
    made = {"id": call.id, "type": "function", "function": function}
    return [
        {"role": "user", "content": ASK},
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": answers, "content": result},
    ]


async def _told(t: Trial, call: ParsedCall, result: str) -> ParsedAnswer:
    messages = _messages(call, result, call.id)
    return await t.generate(CHAT, messages=messages, tools=[DOOR], tool_choice="none", max_tokens=ROUND_TOKENS)


@case("round_trip", asks="a call and its result as messages, with tool_choice none", holds="text, and no call")
async def _round_trip(t: Trial) -> None:
    call = await _call(t)
    answer = await _told(t, call, RESULT)
    ensure(not answer.first.calls, "a tool is called again, in spite of tool_choice none")
    ensure(answer.first.reason in {"stop", "length"}, f"finish_reason is {answer.first.reason!r}")
    ensure(answer.text or answer.first.reasoning or answer.first.reason == "stop", "the answer has no text")


@case("round_trip_streamed", asks="the same, streamed, and free to call again",
      holds="text, or calls that are whole")  # fmt: skip
async def _round_trip_streamed(t: Trial) -> None:
    call = await _call(t)
    messages = _messages(call, RESULT, call.id)
    answer = await t.stream(CHAT, messages=messages, tools=[DOOR], max_tokens=ROUND_TOKENS)
    ensure(answer.done, "the stream does not end with [DONE]")
    ensure((answer.first.reason == "tool_calls") <= bool(answer.first.calls), "tool_calls without a call")


@case("result_is_read", asks="a short result and a long one", holds="the long one makes the prompt longer")
async def _result_is_read(t: Trial) -> None:
    call = await _call(t)
    short, long = [(await _told(t, call, text)).counted.prompt for text in ("ok", "the door is open now " * 10)]
    ensure(long >= short + 10, f"the result does not reach the model: {short} prompt tokens, then {long}")


@case("call_id_unknown", asks="a result with a tool_call_id that no call has", holds="4xx that names messages")
async def _call_id_unknown(t: Trial) -> None:
    call = await _call(t)
    exchange = await t.post(CHAT.path, t.body(CHAT, messages=_messages(call, "ok", STRANGER), tools=[DOOR]))
    refused(exchange, "a tool_call_id that no call has", "messages", "tool_call_id")


@case("result_alone", asks="a result without any call", holds="4xx that names messages")
async def _result_alone(t: Trial) -> None:
    call = ParsedCall("call_1", "set_door", '{"open": true}')
    messages = [message for message in _messages(call, "ok", "call_1") if message["role"] != "assistant"]
    exchange = await t.post(CHAT.path, t.body(CHAT, messages=messages, tools=[DOOR]))
    refused(exchange, "a result without a call", "messages", "tool_call_id")

"""Tools: each way to choose one has its effect, whole and streamed, or is refused by name."""

from __future__ import annotations

from typing import Any

from drivetrain.tools.conform.answers import CHAT, ParsedChoice
from drivetrain.tools.conform.case import BY_FIELD, Area, Cases
from drivetrain.tools.conform.cases.calling import (
    CALL_TOKENS,
    DOOR,
    PAINT,
    TOOLS,
    allowed,
    both,
    call_fields,
    check_call,
    made_calls,
    named,
    single,
    tool,
)
from drivetrain.tools.conform.cases.schemas import record
from drivetrain.tools.conform.reading import brief, honoured, take
from drivetrain.tools.conform.trial import Trial
from drivetrain.tools.conform.verdict import NotRun, ensure

CASES = Cases(Area.TOOLS, BY_FIELD, needs=CHAT)
case = CASES.case

CUT_TOKENS = 4
STRICT_TOKENS = 240
_STRICT = tool(
    "paint_door",
    record(
        "strict",
        colours={"type": "array", "items": {"enum": ["red", "dark blue"]}, "minItems": 2, "maxItems": 2},
        primer={"anyOf": [{"type": "null"}, record("primer", coats={"enum": [1, 2]})]},
        code={"type": "string", "pattern": "^[A-C][0-9]{2}$"},
    ),
    strict=True,
)


@case("auto", asks="a tool, with tool_choice auto and without",
      holds="text, or calls of it with arguments that are JSON objects")  # fmt: skip
async def _auto(t: Trial) -> None:
    for fields in ({}, {"tool_choice": "auto"}):
        async for _, choice in both(t, **fields):
            _check_free(choice, [DOOR])


@case("none", asks="a tool, with tool_choice none", holds="no call, and another reason than tool_calls")
async def _none(t: Trial) -> None:
    async for how, choice in both(t, tool_choice="none"):
        ensure(not choice.calls, f"{how}: a tool is called: {brief(choice.calls[:1])}")
        ensure(choice.reason != "tool_calls", f"{how}: finish_reason is tool_calls")


@case("required", asks="tool_choice = required", holds="at least one call, with arguments that fit the schema")
async def _required(t: Trial) -> None:
    async for how, choice in both(t, tool_choice="required"):
        made_calls(choice, [DOOR], how)


@case("named", asks="tool_choice names a tool", holds="a call of it and no other, with arguments that fit its schema")
async def _named(t: Trial) -> None:
    for one in TOOLS:
        async for how, choice in both(t, tools=TOOLS, tool_choice=named(one["function"]["name"])):
            made_calls(choice, [one], how)


@case("allowed", asks="allowed_tools with one of two tools, required", holds="calls of that tool only")
async def _allowed(t: Trial) -> None:
    async for how, choice in both(t, tools=TOOLS, tool_choice=allowed("required", "paint_door")):
        made_calls(choice, [PAINT], how)


@case("allowed_auto", asks="allowed_tools with one of two tools, auto", holds="text, or calls of that tool only")
async def _allowed_auto(t: Trial) -> None:
    async for _, choice in both(t, tools=TOOLS, tool_choice=allowed("auto", "set_door")):
        _check_free(choice, [DOOR])


@case("one_at_a_time", asks="parallel_tool_calls = false, with tool_choice required", holds="exactly one call")
async def _one_at_a_time(t: Trial) -> None:
    async for how, choice in both(t, tool_choice="required", parallel_tool_calls=False):
        calls = made_calls(choice, [DOOR], how)
        ensure(len(choice.calls) == 1, f"{how}: {len(calls)} calls; parallel_tool_calls = false is ignored")


@case("strict", asks="a strict tool with lists, anyOf and a pattern", holds="arguments that fit its schema")
async def _strict(t: Trial) -> None:
    async for how, choice in both(t, tools=[_STRICT], tool_choice="required", max_tokens=STRICT_TOKENS):
        made_calls(choice, [_STRICT], how)


@case("shape", asks="tool_choice = required",
      holds="each call has an id, a type and a name; content is null or text; the reason is tool_calls")  # fmt: skip
async def _shape(t: Trial) -> None:
    exchange = await t.post(CHAT.path, t.body(CHAT, **call_fields(tool_choice="required", **await single(t))))
    honoured(exchange, {"tools": None, "tool_choice": None})
    reason = take(exchange.json(), "choices.0.finish_reason", str)
    if reason == "length":
        raise NotRun(f"the call was not complete within {CALL_TOKENS} tokens")
    message = take(exchange.json(), "choices.0.message", dict)
    ensure("content" in message, "the message has no content; it must be null or a text")
    for call in take(message, "tool_calls", list):
        ensure(take(call, "id", str), "a call's id is empty")
        kind = take(call, "type", str)
        ensure(kind == "function", f"a call's type is {kind!r}, not 'function'")
        ensure(take(call, "function.name", str), "a call's name is empty")
    ensure(reason == "tool_calls", f"finish_reason is {reason!r}, not 'tool_calls'")


@case("ids", asks="the same call four times, whole and streamed", holds="each has an id of its own")
async def _ids(t: Trial) -> None:
    ids: list[str] = []
    for _ in range(2):
        async for how, choice in both(t, tool_choice="required"):
            made_calls(choice, [DOOR], how)
            ids += [call.id for call in choice.calls]
    ensure(all(ids), "a call has no id")
    ensure(len(set(ids)) == len(ids), f"calls share an id: {brief(sorted(ids))}")


@case("cut_off", asks=f"tool_choice = required, with {CUT_TOKENS} tokens", holds="the reason length, not tool_calls")
async def _cut_off(t: Trial) -> None:
    async for how, choice in both(t, tool_choice="required", max_tokens=CUT_TOKENS):
        ensure(choice.reason == "length", f"{how}: finish_reason is {choice.reason!r}, not 'length'")


def _check_free(choice: ParsedChoice, tools: list[Any]) -> None:
    """Only what the answer itself says is a call that can be used."""
    ensure(choice.calls or choice.reason != "tool_calls", "finish_reason is tool_calls, but there is no call")
    for call in choice.calls if choice.reason == "tool_calls" else ():
        check_call(call, tools, must_fit=False)

"""`/v1/responses`, as the Open Responses document has it: whole and as events."""

from __future__ import annotations

from typing import Any

from drivetrain.tools.conform.answers import CHAT, read_named
from drivetrain.tools.conform.case import BY_ENDPOINT, Area, Cases
from drivetrain.tools.conform.cases.calling import ASK, CALL_TOKENS, DOOR
from drivetrain.tools.conform.cases.schemas import record
from drivetrain.tools.conform.exchange import RecordedExchange
from drivetrain.tools.conform.fitting import fits
from drivetrain.tools.conform.reading import brief, has_room, refused, take
from drivetrain.tools.conform.requester import MAX_TOKENS, PROMPT
from drivetrain.tools.conform.survey import answered
from drivetrain.tools.conform.trial import Trial
from drivetrain.tools.conform.verdict import NotRun, ensure

CASES = Cases(Area.RESPONSES, BY_ENDPOINT)
case = CASES.case

SYSTEM = "Answer like a pirate."
_FLAT = {"type": "function", **DOOR["function"]}
_NAMED = {"type": "function", "name": "set_door"}
_SCHEMA = record("flat", open={"type": "boolean"}, colour={"enum": ["red", "blue"]})
SCHEMA_TOKENS = 60


async def _post(t: Trial, **fields: Any) -> RecordedExchange:
    body = {"model": t.model, "input": PROMPT, "max_output_tokens": MAX_TOKENS, "temperature": 0, **fields}
    exchange = await t.post("/responses", body)
    has_room(exchange)
    answered(exchange, *fields)
    return exchange


async def _whole(t: Trial, **fields: Any) -> dict[str, Any]:
    return (await _post(t, **fields)).document


async def _events(t: Trial, **fields: Any) -> list[dict[str, Any]]:
    return read_named(await _post(t, stream=True, **fields))


def _items(response: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [item for item in take(response, "output", list) if take(item, "type", str) == kind]


def text_of(response: dict[str, Any]) -> str:
    parts = [part for item in _items(response, "message") for part in take(item, "content", list)]
    return "".join(take(part, "text", str) for part in parts if part.get("type") == "output_text")


@case("shape", asks="a short input", holds="a response with status, items with ids, and a usage that adds up")
async def _shape(t: Trial) -> None:
    response = await _whole(t)
    kind = take(response, "object", str)
    ensure(kind == "response", f"object is {kind!r}, not 'response'")
    ensure(take(response, "id", str), "id is empty")
    status = take(response, "status", str)
    ensure(status in {"completed", "incomplete"}, f"status is {status!r}")
    for item in _items(response, "message"):
        ensure(take(item, "id", str), "an item has no id")
        ensure(take(item, "role", str) == "assistant", f"a message is of {item['role']!r}, not of the assistant")
    usage = {name: take(response, f"usage.{name}_tokens", int) for name in ("input", "output", "total")}
    ensure(usage["input"] + usage["output"] == usage["total"], f"the usage does not add up: {brief(usage)}")


@case("same_text", asks="the same greedy prompt as a response and as a chat", holds="the same text")
async def _same_text(t: Trial) -> None:
    await t.known.sample(CHAT)
    said = text_of(await _whole(t))
    chat = (await t.generate(CHAT)).text
    ensure(said == chat, f"the response says {brief(said)}, the chat {brief(chat)}")


@case("instructions", asks="instructions, and the same as a system message of a chat", holds="the same text")
async def _instructions(t: Trial) -> None:
    await t.known.sample(CHAT)
    said = text_of(await _whole(t, instructions=SYSTEM))
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": PROMPT}]
    chat = (await t.generate(CHAT, messages=messages)).text
    ensure(said == chat, f"the response says {brief(said)}, the chat {brief(chat)}")


@case("length", asks=f"max_output_tokens = {MAX_TOKENS} for a long answer",
      holds="status incomplete, with the reason max_output_tokens, if that many tokens came")  # fmt: skip
async def _length(t: Trial) -> None:
    response = await _whole(t)
    used = take(response, "usage.output_tokens", int)
    ensure(used <= MAX_TOKENS, f"{used} tokens were generated, with max_output_tokens = {MAX_TOKENS}")
    if used < MAX_TOKENS or response["status"] == "completed":
        raise NotRun("the model ends by itself")
    reason = take(response, "incomplete_details.reason", str)
    ensure(reason == "max_output_tokens", f"incomplete_details.reason is {reason!r}, not 'max_output_tokens'")


@case("events", asks="a streamed response", holds="numbered events: created, items added, filled and done, the end")
async def _order(t: Trial) -> None:
    events = await _events(t)
    numbers = [take(event, "sequence_number", int) for event in events]
    ensure(numbers == list(range(numbers[0], numbers[0] + len(numbers))), f"the numbers are {brief(numbers)}")
    names = [event["type"] for event in events]
    ensure(names[0] == "response.created", f"the first event is {names[0]}")
    last = names[-1]
    ensure(last in {"response.completed", "response.incomplete"}, f"the last event is {last}")
    open_items: set[int] = set()
    for event in events:
        name = event["type"].removeprefix("response.")
        if name == "output_item.added":
            open_items.add(take(event, "output_index", int))
        elif name == "output_item.done":
            index = take(event, "output_index", int)
            ensure(index in open_items, f"item {index} is done, but was not added")
            open_items.discard(index)
        elif name.endswith(".delta"):
            ensure(take(event, "output_index", int) in open_items, f"{name} belongs to no open item")
    ensure(not open_items, f"items are never done: {brief(sorted(open_items))}")


@case("streamed_text", asks="the same response streamed and whole",
      holds="the joined deltas, the done event, the last response and the whole one agree")  # fmt: skip
async def _streamed_text(t: Trial) -> None:
    await t.known.sample(CHAT)
    whole = text_of(await _whole(t))
    events = await _events(t)
    joined = "".join(take(e, "delta", str) for e in events if e["type"] == "response.output_text.delta")
    done = "".join(take(e, "text", str) for e in events if e["type"] == "response.output_text.done")
    last = text_of(take(events[-1], "response", dict))
    found = {"deltas": joined, "done": done, "last response": last, "whole": whole}
    ensure(len(set(found.values())) == 1, f"the texts differ: {brief(found, 200)}")


@case("call", asks="a tool that must be called, whole and streamed", holds="a function_call whose arguments fit")
async def _call(t: Trial) -> None:
    fields = {"input": ASK, "tools": [_FLAT], "tool_choice": _NAMED, "max_output_tokens": CALL_TOKENS}
    _check_call(_items(await _whole(t, **fields), "function_call"))
    events = await _events(t, **fields)
    _check_call(_items(take(events[-1], "response", dict), "function_call"))
    pieces = [e for e in events if e["type"] == "response.function_call_arguments.delta"]
    done = [e for e in events if e["type"] == "response.function_call_arguments.done"]
    joined = "".join(take(e, "delta", str) for e in pieces)
    ensure(joined == "".join(take(e, "arguments", str) for e in done), "the deltas are not the arguments")


def _check_call(calls: list[dict[str, Any]]) -> None:
    ensure(calls, "tool_choice names a tool, but it is not called")
    for call in calls:
        ensure(take(call, "call_id", str), "a call has no call_id")
        name = take(call, "name", str)
        ensure(name == "set_door", f"{name!r} is called")
        fits(take(call, "arguments", str), DOOR["function"]["parameters"], "arguments of set_door")


@case("result", asks="a call and its result as items; then a result of no call", holds="an answer; then 4xx")
async def _result(t: Trial) -> None:
    call = {"type": "function_call", "call_id": "call_1", "name": "set_door", "arguments": '{"open": true}'}
    result = {"type": "function_call_output", "call_id": "call_1", "output": "It is open."}
    asked = {"role": "user", "content": ASK}
    await _whole(t, input=[asked, call, result], tools=[_FLAT])
    body = {"model": t.model, "input": [asked, {**result, "call_id": "call_2"}], "tools": [_FLAT]}
    refused(await t.post("/responses", body), "the result of a call that nobody made")


@case("schema", asks="text.format with a schema", holds="text that fits it")
async def _schema(t: Trial) -> None:
    text = {"format": {"type": "json_schema", "name": "door", "schema": _SCHEMA, "strict": True}}
    response = await _whole(t, text=text, max_output_tokens=SCHEMA_TOKENS)
    if response["status"] == "incomplete":
        raise NotRun("the answer was not complete within max_output_tokens")
    fits(text_of(response), _SCHEMA, "text")


_BAD: tuple[tuple[str, str, Any], ...] = (
    ("no_input", "input", None),
    ("empty_input", "input", []),
    ("numbers", "input", [1]),
    ("unknown_item", "input", [{"type": "no_such_item"}]),
    ("temperature", "temperature", 9),
    ("max_output_tokens", "max_output_tokens", -5),
    ("unknown_before", "previous_response_id", "resp_that_nobody_made"),
)


def _bad(name: str, field: str, value: Any) -> None:
    @case(f"refuse_{name}", asks=f"{field} = {brief(value)}", holds="4xx")
    async def _check(t: Trial) -> None:
        await _whole(t)
        body = {"model": t.model, "input": PROMPT, "max_output_tokens": MAX_TOKENS, field: value}
        refused(await t.post("/responses", body), f"{field} = {brief(value)}")


for _row in _BAD:
    _bad(*_row)

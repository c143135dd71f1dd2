"""`/v1/messages` and its count of tokens, as Anthropic's API has them: whole and as events."""

from __future__ import annotations

import json
import re
from typing import Any

from drivetrain.tools.conform.answers import CHAT, read_named
from drivetrain.tools.conform.case import BY_ENDPOINT, Area, Cases
from drivetrain.tools.conform.cases.calling import ASK, CALL_TOKENS, DOOR
from drivetrain.tools.conform.exchange import RecordedExchange
from drivetrain.tools.conform.fitting import fits
from drivetrain.tools.conform.reading import brief, has_room, refused, take
from drivetrain.tools.conform.requester import MAX_TOKENS, PROMPT
from drivetrain.tools.conform.survey import answered
from drivetrain.tools.conform.trial import Trial
from drivetrain.tools.conform.verdict import NotRun, ensure

CASES = Cases(Area.MESSAGES, BY_ENDPOINT)
case = CASES.case

SYSTEM = "Answer like a pirate."
STOP_TOKENS = 32
_TOOL = {"name": "set_door", "description": "set door", "input_schema": DOOR["function"]["parameters"]}
_NAMED = {"type": "tool", "name": "set_door"}
_VERSION = {"anthropic-version": "2023-06-01"}


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def _ask(t: Trial, body: dict[str, Any], path: str = "/messages") -> RecordedExchange:
    headers = {**_VERSION, **({"x-api-key": t.client.key} if t.client.key else {})}
    return await t.ask("POST", t.base + path, body, headers=headers)


async def _post(t: Trial, **fields: Any) -> RecordedExchange:
    plain = {"model": t.model, "messages": [_user(PROMPT)], "max_tokens": MAX_TOKENS, "temperature": 0}
    exchange = await _ask(t, {**plain, **fields})
    has_room(exchange)
    answered(exchange, *fields)
    return exchange


async def _whole(t: Trial, **fields: Any) -> dict[str, Any]:
    return (await _post(t, **fields)).document


async def _events(t: Trial, **fields: Any) -> list[dict[str, Any]]:
    events = read_named(await _post(t, stream=True, **fields))
    return [event for event in events if event["type"] != "ping"]


def text_of(message: dict[str, Any]) -> str:
    blocks = [block for block in take(message, "content", list) if take(block, "type", str) == "text"]
    return "".join(take(block, "text", str) for block in blocks)


@case("shape", asks="a short chat", holds="a message of the assistant with blocks, a stop_reason and usage")
async def _shape(t: Trial) -> None:
    message = await _whole(t)
    for name, value in (("type", "message"), ("role", "assistant")):
        found = take(message, name, str)
        ensure(found == value, f"{name} is {found!r}, not {value!r}")
    ensure(take(message, "id", str), "id is empty")
    reason = take(message, "stop_reason", str)
    ensure(reason in {"end_turn", "max_tokens"}, f"stop_reason is {reason!r}")
    ensure(take(message, "usage.input_tokens", int) + _cached(message) > 0, "no input tokens are counted")
    ensure(take(message, "usage.output_tokens", int) > 0, "no output tokens are counted")


def _cached(message: dict[str, Any]) -> int:
    found = message["usage"].get("cache_read_input_tokens") or 0
    return int(found)


@case("same_text", asks="the same greedy prompt as a message and as a chat", holds="the same text")
async def _same_text(t: Trial) -> None:
    await t.known.sample(CHAT)
    said = text_of(await _whole(t))
    chat = (await t.generate(CHAT)).text
    ensure(said == chat, f"the message says {brief(said)}, the chat {brief(chat)}")


@case("system", asks="system, and the same as a system message of a chat", holds="the same text")
async def _system(t: Trial) -> None:
    await t.known.sample(CHAT)
    said = text_of(await _whole(t, system=SYSTEM))
    chat = (await t.generate(CHAT, messages=[{"role": "system", "content": SYSTEM}, _user(PROMPT)])).text
    ensure(said == chat, f"the message says {brief(said)}, the chat {brief(chat)}")


@case("length", asks=f"max_tokens = {MAX_TOKENS} for a long answer", holds="stop_reason max_tokens, if that many came")
async def _length(t: Trial) -> None:
    message = await _whole(t)
    used = take(message, "usage.output_tokens", int)
    ensure(used <= MAX_TOKENS, f"{used} tokens were generated, with max_tokens = {MAX_TOKENS}")
    if used < MAX_TOKENS or message.get("stop_reason") == "end_turn":
        raise NotRun("the model ends by itself")
    ensure(message.get("stop_reason") == "max_tokens", f"stop_reason is {message.get('stop_reason')!r}")


@case("stop", asks="stop_sequences with a piece of the answer", holds="the text before it, and which one it was")
async def _stop(t: Trial) -> None:
    await t.known.sample(CHAT)
    text = text_of(await _whole(t, max_tokens=STOP_TOKENS))
    run = max(re.findall("[^\ufffd]+", text), key=len, default="")
    if not run:
        raise NotRun("the answer has no text to stop at")
    stop = run[len(run) // 2 :][:4]
    message = await _whole(t, max_tokens=STOP_TOKENS, stop_sequences=[stop])
    text = text[: text.index(stop)]
    ensure(text_of(message) == text, f"the text is {brief(text_of(message))}, not {brief(text)}")
    told = message.get("stop_reason"), message.get("stop_sequence")
    ensure(told == ("stop_sequence", stop), f"stop_reason and stop_sequence are {brief(told)}")


@case("events", asks="a streamed message", holds="message_start; each block started, filled and stopped; the end")
async def _order(t: Trial) -> None:
    names = [event["type"] for event in await _events(t)]
    ensure(names[0] == "message_start", f"the first event is {names[0]}")
    ensure(names[-2:] == ["message_delta", "message_stop"], f"the last events are {brief(names[-2:])}")
    is_open = False
    for name in names[1:-2]:
        ensure(name.startswith("content_block_"), f"{name} came among the blocks")
        ensure(is_open == (name != "content_block_start"), f"{name} came while a block was {_WORDS[is_open]}")
        is_open = name != "content_block_stop"
    ensure(not is_open, "the last block is never stopped")


_WORDS = {True: "open", False: "not open"}


@case("streamed_text", asks="the same message streamed and whole", holds="the same text, reason and usage")
async def _streamed_text(t: Trial) -> None:
    await t.known.sample(CHAT)
    message = await _whole(t)
    events = await _events(t)
    deltas = [take(event, "delta", dict) for event in events if event["type"] == "content_block_delta"]
    joined = "".join(take(delta, "text", str) for delta in deltas if delta.get("type") == "text_delta")
    ensure(joined == text_of(message), f"streamed {brief(joined)}, whole {brief(text_of(message))}")
    (ended,) = [event for event in events if event["type"] == "message_delta"]
    reason = take(ended, "delta.stop_reason", str)
    ensure(reason == message["stop_reason"], f"streamed, stop_reason is {reason!r}; whole, {message['stop_reason']!r}")
    tokens = take(ended, "usage.output_tokens", int)
    whole = take(message, "usage.output_tokens", int)
    ensure(tokens == whole, f"streamed, {tokens} output tokens are counted; whole, {whole}")


@case("call", asks="a tool that must be called, whole and streamed", holds="a tool_use whose input fits its schema")
async def _call(t: Trial) -> None:
    fields = {"messages": [_user(ASK)], "tools": [_TOOL], "tool_choice": _NAMED, "max_tokens": CALL_TOKENS}
    message = await _whole(t, **fields)
    uses = [block for block in take(message, "content", list) if block.get("type") == "tool_use"]
    _check_uses([(use, json.dumps(take(use, "input", dict))) for use in uses], message.get("stop_reason"))
    started: dict[int, dict[str, Any]] = {}
    inputs: dict[int, str] = {}
    events = await _events(t, **fields)
    for event in events:
        if event["type"] == "content_block_start" and take(event, "content_block.type", str) == "tool_use":
            started[take(event, "index", int)] = event["content_block"]
        elif event["type"] == "content_block_delta" and "partial_json" in take(event, "delta", dict):
            index = take(event, "index", int)
            inputs[index] = inputs.get(index, "") + take(event, "delta.partial_json", str)
    reason = next(event["delta"].get("stop_reason") for event in events if event["type"] == "message_delta")
    _check_uses([(use, inputs.get(index, "")) for index, use in started.items()], reason)


def _check_uses(uses: list[tuple[dict[str, Any], str]], reason: str | None) -> None:
    ensure(uses, "tool_choice names a tool, but it is not called")
    for use, arguments in uses:
        ensure(take(use, "id", str), "a tool_use has no id")
        ensure(take(use, "name", str) == "set_door", f"{use['name']!r} is called")
        fits(arguments, _TOOL["input_schema"], "input of set_door")
    ensure(reason == "tool_use", f"stop_reason is {reason!r}, not 'tool_use'")


@case("result", asks="a call and its result as blocks; then a result of no call", holds="an answer; then 4xx")
async def _result(t: Trial) -> None:
    use = {"type": "tool_use", "id": "call_1", "name": "set_door", "input": {"open": True}}
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": "It is open."}
    said = [_user(ASK), {"role": "assistant", "content": [use]}]
    await _whole(t, messages=[*said, {"role": "user", "content": [result]}], tools=[_TOOL])
    wrong = [*said, {"role": "user", "content": [{**result, "tool_use_id": "call_2"}]}]
    body = {"model": t.model, "messages": wrong, "tools": [_TOOL], "max_tokens": MAX_TOKENS}
    refused(await _ask(t, body), "the result of a call that nobody made")


@case("count", asks="count_tokens of a chat", holds="as many as its message counts as input")
async def _count(t: Trial) -> None:
    message = await _whole(t, system=SYSTEM)
    body = {"model": t.model, "messages": [_user(PROMPT)], "system": SYSTEM}
    exchange = await _ask(t, body, "/messages/count_tokens")
    answered(exchange)
    counted = take(exchange.json(), "input_tokens", int)
    used = take(message, "usage.input_tokens", int) + _cached(message)
    ensure(counted == used, f"{counted} tokens are counted; the message's usage has {used}")


@case("error", asks="a chat without max_tokens", holds="4xx with the error object of this API")
async def _error(t: Trial) -> None:
    await _whole(t)
    exchange = await _ask(t, {"model": t.model, "messages": [_user(PROMPT)]})
    refused(exchange, "a chat without max_tokens", "max_tokens")
    document = exchange.json()
    ensure(take(document, "type", str) == "error", f"type is {document['type']!r}, not 'error'")
    kind = take(document, "error.type", str)
    ensure(kind == "invalid_request_error", f"error.type is {kind!r}, not 'invalid_request_error'")


_BAD: tuple[tuple[str, str, Any], ...] = (
    ("empty", "messages", []),
    ("unknown_role", "messages", [{"role": "nobody", "content": "x"}]),
    ("unknown_block", "messages", [{"role": "user", "content": [{"type": "no_such_block"}]}]),
    ("temperature", "temperature", 9),
    ("max_tokens", "max_tokens", -5),
)


def _bad(name: str, field: str, value: Any) -> None:
    @case(f"refuse_{name}", asks=f"{field} = {brief(value)}", holds="4xx")
    async def _check(t: Trial) -> None:
        await _whole(t)
        body = {"model": t.model, "messages": [_user(PROMPT)], "max_tokens": MAX_TOKENS, field: value}
        refused(await _ask(t, body), f"{field} = {brief(value)}")


for _row in _BAD:
    _bad(*_row)

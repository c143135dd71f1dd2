"""Structured output and tools: refused by name if they are not supported, obeyed if they are."""

from __future__ import annotations

import json
import re
from typing import Any

from drivetrain.tools.conform.answers import CHAT, ParsedAnswer
from drivetrain.tools.conform.case import BY_EFFECT, BY_FIELD, Area, Cases
from drivetrain.tools.conform.cases.schemas import schema_format
from drivetrain.tools.conform.reading import brief, honoured, refused, take
from drivetrain.tools.conform.trial import Trial
from drivetrain.tools.conform.verdict import Failed, NotRun, ensure

CASES = Cases(Area.STRUCTURED, BY_FIELD, needs=CHAT)
case = CASES.case

TOKENS = 200
CALL_TOKENS = 120
"""Enough for one call. The tools make the prompt long, and a small context has to hold both."""

_SCHEMA = {
    "type": "object",
    "properties": {"open": {"type": "boolean"}},
    "required": ["open"],
    "additionalProperties": False,
}
_TOOL = {"type": "function", "function": {"name": "set_door", "description": "open or close", "parameters": _SCHEMA}}
_ASK = "Is the door open? Answer in JSON."


async def _answer(t: Trial, **fields: Any) -> str:
    return _complete(await t.generate(CHAT, **CHAT.prompt_fields(_ASK), max_tokens=TOKENS, **fields))


def _complete(answer: ParsedAnswer) -> str:
    if answer.first.reason == "length" and answer.text.lstrip().startswith("{"):
        raise NotRun(f"the answer was not complete within {TOKENS} tokens")
    return answer.text


@case("json_object", asks="response_format json_object", holds="the text is a JSON object")
async def _json_object(t: Trial) -> None:
    ensure(
        isinstance(_parsed(await _answer(t, response_format={"type": "json_object"})), dict), "it is not a JSON object"
    )


@case("json_schema", asks="response_format json_schema", holds="the text fits the schema")
async def _json_schema(t: Trial) -> None:
    _check_door(_parsed(await _answer(t, response_format=schema_format(_SCHEMA))))


@case("bad_schema", asks="response_format with a schema of an unknown type", holds="4xx")
async def _bad_schema(t: Trial) -> None:
    exchange = await t.post(CHAT.path, t.body(CHAT, response_format=schema_format({"type": "nonsense"})))
    refused(exchange, "a schema of the type nonsense")


@case("choice", asks="choice = alpha or beta", holds="the text is one of them", offered=BY_EFFECT)
async def _choice(t: Trial) -> None:
    text = await _answer(t, choice=["alpha", "beta"])
    ensure(text in {"alpha", "beta"}, f"choice is accepted, but the text is {brief(text)}: it is ignored")


@case("choice_of_vllm", asks="structured_outputs.choice = alpha or beta", holds="the text is one of them",
      offered=BY_EFFECT)  # fmt: skip
async def _structured_outputs(t: Trial) -> None:
    text = await _answer(t, structured_outputs={"choice": ["alpha", "beta"]})
    ensure(text in {"alpha", "beta"}, f"structured_outputs is accepted, but the text is {brief(text)}: it is ignored")


@case("json_object_streamed", asks="response_format json_object, streamed", holds="the joined text is a JSON object")
async def _json_object_streamed(t: Trial) -> None:
    answer = await t.stream(
        CHAT, **CHAT.prompt_fields(_ASK), max_tokens=TOKENS, response_format={"type": "json_object"}
    )
    ensure(isinstance(_parsed(_complete(answer)), dict), "it is not a JSON object")


@case("regex", asks="regex = [ab]{3}", holds="the text matches", offered=BY_EFFECT)
async def _regex(t: Trial) -> None:
    text = await _answer(t, regex="[ab]{3}")
    ensure(re.fullmatch("[ab]{3}", text), f"regex is accepted, but the text is {brief(text)}: it is ignored")


@case("grammar", asks='grammar = root ::= "yes" | "no"', holds="the text is yes or no", offered=BY_EFFECT)
async def _grammar(t: Trial) -> None:
    text = await _answer(t, grammar='root ::= "yes" | "no"')
    ensure(text in {"yes", "no"}, f"grammar is accepted, but the text is {brief(text)}: it is ignored")


@case("tool_named", asks="tool_choice names a tool", holds="one call to it, with arguments that fit its schema")
async def _tool_named(t: Trial) -> None:
    await _check_call(t, {"type": "function", "function": {"name": "set_door"}})


@case("tool_required", asks="tool_choice = required", holds="at least one call, with arguments that fit the schema")
async def _tool_required(t: Trial) -> None:
    await _check_call(t, "required")


async def _check_call(t: Trial, choice: Any) -> None:
    body = t.body(
        CHAT, **CHAT.prompt_fields("Open the door."), max_tokens=CALL_TOKENS, tools=[_TOOL], tool_choice=choice
    )
    exchange = await t.post(CHAT.path, body)
    honoured(exchange, {"tools": None, "tool_choice": None})
    message = take(exchange.json(), "choices.0.message", dict)
    if not message.get("tool_calls"):
        raise Failed("tools are accepted, but no tool is called: tool_choice is ignored")
    name = take(message, "tool_calls.0.function.name", str)
    ensure(name == "set_door", f"the tool {name!r} is called, which was not offered")
    _check_door(_parsed(take(message, "tool_calls.0.function.arguments", str)))


def _check_door(value: Any) -> None:
    fits = isinstance(value, dict) and set(value) == {"open"} and isinstance(value["open"], bool)
    ensure(fits, f"{brief(value)} does not fit the schema")


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise Failed(f"the text is not JSON: {brief(text, 160)}") from None


@case("unknown_format", asks="response_format of an unknown type", holds="4xx that names response_format",
      offered="every server knows its own fields")  # fmt: skip
async def _unknown_format(t: Trial) -> None:
    await t.refuse(CHAT, "response_format", {"type": "nonsense"})

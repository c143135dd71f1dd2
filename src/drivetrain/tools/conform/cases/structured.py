"""Each form of structured output: refused by name if it is not supported, obeyed if it is."""

from __future__ import annotations

import re
from typing import Any

from drivetrain.tools.conform.answers import CHAT
from drivetrain.tools.conform.case import BY_EFFECT, BY_FIELD, Area, Cases
from drivetrain.tools.conform.cases.schemas import is_complete, record, schema_format
from drivetrain.tools.conform.fitting import fits, parsed
from drivetrain.tools.conform.reading import brief
from drivetrain.tools.conform.trial import Trial
from drivetrain.tools.conform.verdict import ensure

CASES = Cases(Area.STRUCTURED, BY_FIELD, needs=CHAT)
case = CASES.case

TOKENS = 200
_SCHEMA = record("door", open={"type": "boolean"})
_ASK = "Is the door open? Answer in JSON."


async def _answer(t: Trial, **fields: Any) -> str:
    choice = (await t.generate(CHAT, **CHAT.prompt_fields(_ASK), max_tokens=TOKENS, **fields)).first
    is_complete(choice, TOKENS)
    return choice.text


@case("json_object", asks="response_format json_object", holds="the text is a JSON object")
async def _json_object(t: Trial) -> None:
    text = await _answer(t, response_format={"type": "json_object"})
    ensure(isinstance(parsed(text, "text"), dict), "it is not a JSON object")


@case("json_schema", asks="response_format json_schema", holds="the text fits the schema")
async def _json_schema(t: Trial) -> None:
    fits(await _answer(t, response_format=schema_format(_SCHEMA)), _SCHEMA, "text")


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
    is_complete(answer.first, TOKENS)
    ensure(isinstance(parsed(answer.text, "text"), dict), "it is not a JSON object")


@case("regex", asks="regex = [ab]{3}", holds="the text matches", offered=BY_EFFECT)
async def _regex(t: Trial) -> None:
    text = await _answer(t, regex="[ab]{3}")
    ensure(re.fullmatch("[ab]{3}", text), f"regex is accepted, but the text is {brief(text)}: it is ignored")


@case("grammar", asks='grammar = root ::= "yes" | "no"', holds="the text is yes or no", offered=BY_EFFECT)
async def _grammar(t: Trial) -> None:
    text = await _answer(t, grammar='root ::= "yes" | "no"')
    ensure(text in {"yes", "no"}, f"grammar is accepted, but the text is {brief(text)}: it is ignored")

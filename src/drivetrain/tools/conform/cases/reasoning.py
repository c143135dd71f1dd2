"""Reasoning, where the model reasons: apart from the content, and counted."""

from __future__ import annotations

from typing import Any

from drivetrain.tools.conform.answers import CHAT, ParsedAnswer, ParsedChoice, ParsedUsage
from drivetrain.tools.conform.calls import reasoning_of
from drivetrain.tools.conform.case import BY_EFFECT, BY_FIELD, Area, Cases
from drivetrain.tools.conform.cases.schemas import is_complete, record, schema_format
from drivetrain.tools.conform.fitting import fits
from drivetrain.tools.conform.reading import brief, take
from drivetrain.tools.conform.trial import Trial
from drivetrain.tools.conform.verdict import Failed, NotOffered, NotRun, ensure

CASES = Cases(Area.REASONING, "the model's answer has reasoning", needs=CHAT)
case = CASES.case

ASK = "Is 91 a prime number? Think about it briefly, then answer yes or no."
TOKENS = 500
BUDGET = 8
MARKER_TOKENS = 20
"""The most tokens that the markers of reasoning may have, which some servers count too."""

MARKERS = ("<think>", "</think>", "[THINK]", "[/THINK]", "<|channel|>", "<seed:think>")
_SCHEMA = record("verdict", prime={"enum": ["yes", "no"]})


async def _thought(t: Trial, **fields: Any) -> ParsedAnswer:
    """Raises `NotOffered` if there is no reasoning apart from the content, and `Failed` if it is in the content."""
    answer = await t.generate(CHAT, **await _question(t), **fields)
    _check_apart(answer.first, "whole")
    if not answer.first.reasoning:
        raise NotOffered("the model's answer has no reasoning")
    return answer


async def _streamed(t: Trial, **fields: Any) -> ParsedAnswer:
    return await t.stream(CHAT, **await _question(t), **fields)


async def _question(t: Trial) -> dict[str, Any]:
    return {**CHAT.prompt_fields(ASK), "max_tokens": await t.known.long_tokens(TOKENS)}


def _check_apart(choice: ParsedChoice, how: str) -> None:
    for marker in MARKERS:
        for where, text in (("content", choice.text), ("reasoning", choice.reasoning)):
            ensure(marker not in text, f"{how}: the {where} has {marker}")
    ensure(
        not choice.reasoning or not choice.text.startswith(choice.reasoning),
        f"{how}: the content repeats the reasoning",
    )


@case("apart", asks="a question to think about", holds="the reasoning is apart from the content, without its markers")
async def _apart(t: Trial) -> None:
    await _thought(t)


@case("streamed", asks="the same question, streamed",
      holds="as whole: reasoning, then content, never both in one event")  # fmt: skip
async def _as_whole(t: Trial) -> None:
    whole = await _thought(t)
    answer = await _streamed(t)
    _check_apart(answer.first, "streamed")
    for kind in ("reasoning", "text"):
        one, other = getattr(answer.first, kind), getattr(whole.first, kind)
        ensure(bool(one) == bool(other), f"{kind}: streamed {brief(one)}, whole {brief(other)}")
    kinds = [_kinds(choice["delta"]) for chunk in answer.chunks for choice in take(chunk, "choices", list)]
    ensure(not any(kind == (True, True) for kind in kinds), "an event has both reasoning and content")
    thoughts = [i for i, kind in enumerate(kinds) if kind[0]]
    content = [i for i, kind in enumerate(kinds) if kind[1]]
    ensure(not content or thoughts[-1] < content[0], "reasoning came after the content had begun")


def _kinds(delta: dict[str, Any]) -> tuple[bool, bool]:
    return bool(reasoning_of(delta)), bool(delta.get("content"))


@case("usage", asks="the same question", holds="reasoning_tokens are counted, at most completion_tokens")
async def _usage(t: Trial) -> None:
    answer = await _thought(t)
    _check_count(answer.counted, answer.first)


@case("usage_streamed", asks="the same question, streamed with include_usage", holds="as in a whole answer")
async def _usage_streamed(t: Trial) -> None:
    await _thought(t)
    answer = await _streamed(t, stream_options={"include_usage": True})
    _check_count(answer.counted, answer.first)


def _check_count(usage: ParsedUsage, choice: ParsedChoice) -> None:
    if usage.reasoning is None:
        raise Failed("the usage has no completion_tokens_details.reasoning_tokens")
    most = usage.completion - bool(choice.text)
    ensure(0 < usage.reasoning <= most, f"{usage.reasoning} reasoning tokens of {usage.completion} tokens in all")


@case("response_format", asks="the same question, with a schema", holds="the content fits the schema", offered=BY_FIELD)
async def _format(t: Trial) -> None:
    choice = (await _thought(t, response_format=schema_format(_SCHEMA))).first
    is_complete(choice, TOKENS)
    fits(choice.text, _SCHEMA, "content")


@case(
    "budget",
    asks=f"max_reasoning_tokens = {BUDGET}",
    holds="no more tokens of reasoning, but for its markers",
    offered=BY_EFFECT,
)
async def _budget(t: Trial) -> None:
    free = (await _thought(t)).counted.reasoning
    if free is None or free <= BUDGET + MARKER_TOKENS:
        raise NotRun("the model reasons too little, or its tokens are not counted; see reasoning.usage")
    held = (await t.generate(CHAT, **await _question(t), max_reasoning_tokens=BUDGET)).counted
    most = BUDGET + MARKER_TOKENS
    ensure((held.reasoning or 0) <= most, f"{held.reasoning} reasoning tokens: max_reasoning_tokens is ignored")


@case("effort_number", asks="reasoning_effort = 7", holds="4xx that names reasoning_effort",
      offered="every server knows its own fields")  # fmt: skip
async def _effort_number(t: Trial) -> None:
    await t.refuse(CHAT, "reasoning_effort", 7)

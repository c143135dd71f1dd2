"""Checks that chat and completions have in common."""

from __future__ import annotations

from typing import Any

from drivetrain.tools.conform.answers import Api, ParsedAnswer, read_whole
from drivetrain.tools.conform.case import Cases
from drivetrain.tools.conform.exchange import RecordedExchange
from drivetrain.tools.conform.reading import brief, refused, take
from drivetrain.tools.conform.survey import UNKNOWN_MODEL
from drivetrain.tools.conform.trial import Trial
from drivetrain.tools.conform.verdict import NotRun, ensure

REASONS = {"stop", "length", "content_filter", "tool_calls", "function_call"}


def check_shape(api: Api, exchange: RecordedExchange) -> dict[str, Any]:
    document = exchange.json()
    ensure(take(document, "id", str), "id is empty")
    ensure(take(document, "object", str) == api.object, f"object is {document['object']!r}, not {api.object!r}")
    take(document, "created", int)
    take(document, "model", str)
    take(document, f"choices.0.{api.text}", str)
    choices = read_whole(api, exchange).choices
    ensure([choice.index for choice in choices] == [0], "there must be one choice, with index 0")
    reason = choices[0].reason
    ensure(reason in REASONS, f"finish_reason is {brief(reason)}")
    ensure(choices[0].logprobs is None, "logprobs came without being asked for; they must be null")
    return dict(document)


def add_refusal(cases: Cases, name: str, api: Api, what: str, **fields: Any) -> None:
    """A case in which a request with these fields must be refused."""

    @cases.case(name, asks=what, holds="4xx")
    async def _check(t: Trial) -> None:
        refused(await t.post(api.path, t.body(api, **fields)), what)


async def check_unknown_model(t: Trial, api: Api) -> None:
    exchange = await t.post(api.path, t.body(api, model=UNKNOWN_MODEL))
    ensure(exchange.status == 404, f"status {exchange.status} for an unknown model; it must be 404")


async def check_length(t: Trial, api: Api, **fields: Any) -> None:
    """The answer has exactly as many tokens as the fields ask for."""
    answer = await t.generate(api, **fields, **await t.known.steady(api))
    (want,) = {value for value in fields.values() if isinstance(value, int)}
    got, reason = answer.counted.completion, answer.first.reason
    if reason == "stop" and got <= want:
        raise NotRun(f"the model ended its answer by itself after {got} tokens")
    ensure(got == want, f"usage counts {got} completion tokens, not {want}")
    ensure(reason == "length", f"finish_reason is {reason!r}, not 'length'")


async def one_length(t: Trial, api: Api, tokens: int, **fields: Any) -> ParsedAnswer:
    """An answer that `max_tokens` ended. Raises `NotRun` if the model ended it earlier."""
    answer = await t.generate(api, max_tokens=tokens, **fields, **await t.known.steady(api))
    if any(choice.reason != "length" for choice in answer.choices):
        raise NotRun("the model ended its answer by itself before max_tokens")
    return answer

"""Calls in streams: their pieces join to the call of the whole answer."""

from __future__ import annotations

from typing import Any

from drivetrain.tools.conform.answers import CHAT, ParsedAnswer, ParsedChoice
from drivetrain.tools.conform.case import BY_FIELD, Area, Cases
from drivetrain.tools.conform.cases.calling import CALL_TOKENS, DOOR, call_fields, made_calls, single
from drivetrain.tools.conform.reading import brief, take
from drivetrain.tools.conform.trial import Trial
from drivetrain.tools.conform.verdict import NotRun, ensure

CASES = Cases(Area.TOOLS, BY_FIELD, needs=CHAT)
case = CASES.case


async def _streamed(t: Trial, **fields: Any) -> ParsedAnswer:
    answer = await t.stream(CHAT, **call_fields(tool_choice="required", **fields))
    made_calls(answer.first, [DOOR], "streamed")
    return answer


@case(
    "streamed",
    asks="a required call, streamed and whole",
    holds="the joined pieces are the same calls, text and reason",
)
async def _same(t: Trial) -> None:
    streamed = (await _streamed(t)).first
    whole = (await t.generate(CHAT, **call_fields(tool_choice="required"))).first
    if _shown(streamed) != _shown(whole):
        again = (await t.generate(CHAT, **call_fields(tool_choice="required"))).first
        if _shown(again) != _shown(whole):
            raise NotRun("the same request gets a different answer each time; see parameters.greedy_repeats")
        ensure(False, f"streamed {brief(_shown(streamed), 160)}, whole {brief(_shown(whole), 160)}")


def _shown(choice: ParsedChoice) -> Any:
    calls = [(call.name, call.arguments) for call in choice.calls]
    return calls, choice.text, choice.reason


@case("streamed_heads", asks="a required call, streamed",
      holds="id, type and name come once, in a call's first piece; the indices are 0, 1 and so on")  # fmt: skip
async def _heads(t: Trial) -> None:
    answer = await _streamed(t)
    pieces = _pieces(answer)
    for place, call in enumerate(answer.first.calls):
        ensure(len(call.heads) == 1, f"id or name of call {place} came {len(call.heads)} times, not once")
        first = next(piece for piece in pieces if piece["index"] == place)
        ensure(take(first, "id", str), f"the first piece of call {place} has no id")
        ensure(take(first, "function.name", str), f"the first piece of call {place} has no name")
        ensure(take(first, "type", str) == "function", f"the first piece of call {place} is not of the type function")


def _pieces(answer: ParsedAnswer) -> list[dict[str, Any]]:
    """In order. Raises `Failed` if a call's pieces begin before those of the one before."""
    found = [
        piece
        for chunk in answer.chunks
        for choice in take(chunk, "choices", list)
        for piece in take(choice, "delta", dict).get("tool_calls") or ()
    ]
    order = list(dict.fromkeys(take(piece, "index", int) for piece in found))
    ensure(order == list(range(len(order))), f"the indices of the calls are {brief(order)}, not 0, 1 and so on")
    return found


@case("streamed_finish", asks="a required call, streamed",
      holds="one finish_reason, tool_calls, behind all pieces")  # fmt: skip
async def _finish(t: Trial) -> None:
    answer = await _streamed(t, **await single(t))
    choices = [choice for chunk in answer.chunks for choice in take(chunk, "choices", list)]
    reasons = [choice["finish_reason"] for choice in choices if choice.get("finish_reason") is not None]
    if reasons == ["length"]:
        raise NotRun(f"the call was not complete within {CALL_TOKENS} tokens")
    ensure(reasons == ["tool_calls"], f"the finish reasons are {brief(reasons)}, not one tool_calls")
    last = max(i for i, choice in enumerate(choices) if choice["delta"].get("tool_calls"))
    ended = next(i for i, choice in enumerate(choices) if choice.get("finish_reason") is not None)
    ensure(last <= ended, "pieces of calls came after the finish_reason")


@case("streamed_usage", asks="a required call, streamed with include_usage, and whole", holds="the same usage")
async def _usage(t: Trial) -> None:
    streamed = await _streamed(t, stream_options={"include_usage": True})
    whole = await t.generate(CHAT, **call_fields(tool_choice="required"))
    if _shown(streamed.first) != _shown(whole.first):
        raise NotRun("the stream's call is another one; see tools.streamed")
    ensure(streamed.counted == whole.counted, f"streamed {streamed.counted}, whole {whole.counted}")

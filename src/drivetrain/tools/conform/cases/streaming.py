"""Server-sent events of both text endpoints."""

from __future__ import annotations

from typing import Any

from drivetrain.tools.conform.answers import (
    CHAT,
    COMPLETIONS,
    DONE,
    Api,
    ParsedAnswer,
    pieces,
    read_events,
    read_stream,
)
from drivetrain.tools.conform.case import BY_EFFECT, BY_ENDPOINT, BY_FIELD, Area, Cases
from drivetrain.tools.conform.client import Broken, Unreachable
from drivetrain.tools.conform.exchange import RecordedExchange
from drivetrain.tools.conform.reading import brief, error_of, honoured, refused, take
from drivetrain.tools.conform.requester import PROMPT
from drivetrain.tools.conform.trial import Trial
from drivetrain.tools.conform.verdict import Failed, NotRun, ensure

CASES = Cases(Area.STREAMING, BY_ENDPOINT)
case = CASES.case

FAULTS: tuple[tuple[str, Any], ...] = (("temperature", 9), ("max_tokens", "x"))
DEADLINES_S = (0.01, 0.05, 0.2, 1.0)
GRACE_S = 2.0
LONG_TOKENS = 1500


@case("shape", asks="a streamed chat", holds="text/event-stream; each event one JSON object, chat.completion.chunk")
async def _shape(t: Trial) -> None:
    answer = await _streamed(t, CHAT)
    for chunk in answer.chunks:
        kind = take(chunk, "object", str)
        ensure(kind == CHAT.chunk, f"an event's object is {kind!r}, not {CHAT.chunk!r}")


@case("role", asks="a streamed chat", holds="the first event has the role and no text, later ones no role")
async def _role(t: Trial) -> None:
    answer = await _streamed(t, CHAT)
    deltas = [take(chunk, "choices.0.delta", dict) for chunk in answer.chunks if chunk["choices"]]
    ensure(deltas[0].get("role") == "assistant", f"the first delta is {brief(deltas[0])}: it has no role assistant")
    ensure(not deltas[0].get("content"), f"the first delta has text: {brief(deltas[0])}")
    again = [delta for delta in deltas[1:] if delta.get("role")]
    ensure(not again, f"a role came again: {brief(again[:1])}")


@case("one_id", asks="a streamed chat", holds="one id, one model and one time in all events")
async def _one_id(t: Trial) -> None:
    answer = await _streamed(t, CHAT)
    for name in ("id", "model", "created"):
        found = {repr(chunk.get(name)) for chunk in answer.chunks}
        ensure(len(found) == 1, f"{name} changes within the stream: {brief(sorted(found))}")
        ensure(answer.document.get(name), f"the events have no {name}")


@case("finish", asks="a streamed chat", holds="exactly one finish_reason, and no text after it")
async def _finish(t: Trial) -> None:
    _check_finish(await _streamed(t, CHAT), CHAT)


@case("done", asks="a streamed chat", holds="data: [DONE] ends it, once")
async def _done(t: Trial) -> None:
    await _streamed(t, CHAT)
    _check_done(t.exchanges[-1])


@case("text", asks="the same chat streamed and whole", holds="the joined text and the reason are the same")
async def _text(t: Trial) -> None:
    await _check_text(t, CHAT)


@case("usage", asks="stream_options.include_usage", holds="a last event with no choices and the usage, none before it")
async def _usage(t: Trial) -> None:
    await _check_usage(t, CHAT)


@case("no_usage", asks="a stream without stream_options", holds="no event has a usage")
async def _no_usage(t: Trial) -> None:
    answer = await _streamed(t, CHAT)
    ensure(answer.usage is None, "usage came without being asked for")


@case("several", asks="a streamed chat with n = 2", holds="each index has one role and one finish_reason",
      offered=BY_FIELD)  # fmt: skip
async def _several(t: Trial) -> None:
    await t.known.offers(CHAT)
    answer = await t.stream(CHAT, n=2, temperature=1)
    ensure([choice.index for choice in answer.choices] == [0, 1], "n = 2 must give the indices 0 and 1")
    for index in (0, 1):
        mine = [choice for choice in _choices(answer) if choice["index"] == index]
        roles = sum(bool(take(choice, "delta", dict).get("role")) for choice in mine)
        reasons = sum(choice.get("finish_reason") is not None for choice in mine)
        ensure(roles == 1, f"choice {index} has {roles} roles, not 1")
        ensure(reasons == 1, f"choice {index} has {reasons} finish reasons, not 1")


@case("refused_before", asks="a streamed request that is refused when it is not streamed",
      holds="4xx, before any event")  # fmt: skip
async def _refused_before(t: Trial) -> None:
    await t.known.offers(CHAT)
    for name, value in FAULTS:
        if (await t.post(CHAT.path, t.body(CHAT, **{name: value}))).status == 200:
            continue
        exchange = await t.post(CHAT.path, t.body(CHAT, **{name: value}, stream=True))
        ensure(
            exchange.status != 200, f"a stream was started for {name} = {value!r}, which is refused without a stream"
        )
        refused(exchange, f"{name} = {value!r}")
        kind = exchange.reply_headers.get("content-type", "")
        ensure(kind.startswith("application/json"), f"the refusal has the content type {kind!r}")
        return
    raise NotRun("faulty requests are not refused; see the area refusals")


@case("options_alone", asks="stream_options without stream", holds="400 that names stream_options")
async def _options_alone(t: Trial) -> None:
    await t.known.offers(CHAT)
    await t.refuse(CHAT, "stream_options", {"include_usage": True})


@case(
    "characters",
    asks="an answer with emoji and CJK, streamed and whole",
    holds="the same text, and no event has half a character",
)
async def _characters(t: Trial) -> None:
    api = await t.known.text_api()
    prompt = "Repeat exactly: 🌍🎉你好, 世界! 🌍🎉你好, 世界!"
    fields: dict[str, Any] = {**api.prompt_fields(prompt), "max_tokens": 32}
    if api is COMPLETIONS and await t.known.takes(api, "echo", True):
        fields["echo"] = True
    await t.known.sample()
    whole = await t.generate(api, **fields)
    streamed = await t.stream(api, **fields)
    parts = pieces(api, streamed)
    ensure(not any(_is_cut(part) for part in parts), f"an event has half a character: {brief(parts)}")
    ensure(streamed.text == whole.text, f"streamed {brief(streamed.text)}, whole {brief(whole.text)}")
    if whole.text.isascii():
        raise NotRun("the model's answer has only ASCII characters")


def _is_cut(part: str) -> bool:
    return any(0xD800 <= ord(character) <= 0xDFFF for character in part)


@case("echoed_characters", asks="completions with echo of emoji and CJK, streamed", holds="they come back as sent",
      offered=BY_FIELD)  # fmt: skip
async def _echoed_characters(t: Trial) -> None:
    await t.known.offers(COMPLETIONS)
    await t.known.echoes()
    prompt = "🌍🎉你好, wörld! 👩‍👩‍👧‍👦 семья क्षत्रिय"
    answer = await t.stream(COMPLETIONS, prompt=prompt, echo=True, max_tokens=1)
    ensure(
        answer.text.startswith(prompt), f"the joined text is {brief(answer.text, 200)}; it must begin with the prompt"
    )


@case(
    "deadline",
    asks="a long answer with a timeout_s that is too short for it",
    holds="504, or an error event and then [DONE]; never a normal ending, never the error as text",
    offered=BY_EFFECT,
)
async def _deadline(t: Trial) -> None:
    await t.known.offers(CHAT)
    steady = await t.known.steady(CHAT)
    tokens = await t.known.long_tokens(LONG_TOKENS)
    overdue = False
    for timeout_s in DEADLINES_S:
        fields = {"max_tokens": tokens, "timeout_s": timeout_s, "stream_options": {"include_usage": True}}
        try:
            exchange = await t.post(CHAT.path, t.body(CHAT, **fields, stream=True, **steady))
        except Unreachable:
            raise
        except Broken as exc:
            raise Failed(f"timeout_s = {timeout_s:g} is ignored: {exc}") from None
        if exchange.status == 504:
            error_of(exchange)
            overdue = True
            continue
        honoured(exchange, {"timeout_s": timeout_s})
        if _ended_by_error(exchange):
            return
        _check_complete(exchange, timeout_s, tokens if steady else None)
    if not overdue:
        raise NotRun("every answer finished before its deadline")


def _ended_by_error(exchange: RecordedExchange) -> bool:
    *events, last = read_events(exchange) or [""]
    ensure(last == DONE, f"the stream ends with {brief(last)}, not with [DONE]")
    ensure(events, "the stream ended without an event")
    if '"error"' not in events[-1]:
        return False
    ensure('"choices"' not in events[-1], "the error came as a choice")
    return True


def _check_complete(exchange: RecordedExchange, timeout_s: float, tokens: int | None) -> None:
    """A stream that ends normally must be in time and have all its tokens."""
    ensure(exchange.took_s < timeout_s + GRACE_S,
           f"with timeout_s = {timeout_s:g} the answer went on for {exchange.took_s:.1f} s: it is ignored")  # fmt: skip
    answer = read_stream(CHAT, exchange)
    if tokens is not None and answer.usage is not None:
        got = answer.usage.completion
        ensure(got == tokens, f"it ended normally after {got} of {tokens} tokens: {brief(answer.text[-60:])}")


# Completions


@case("completions", asks="a streamed completion", holds="events of text_completion, one finish_reason, [DONE]")
async def _completions(t: Trial) -> None:
    answer = await _streamed(t, COMPLETIONS)
    for chunk in answer.chunks:
        kind = take(chunk, "object", str)
        ensure(kind == COMPLETIONS.chunk, f"an event's object is {kind!r}, not {COMPLETIONS.chunk!r}")
    _check_finish(answer, COMPLETIONS)
    _check_done(t.exchanges[-1])


@case("completions_text", asks="the same completion streamed and whole", holds="the same text and reason")
async def _completions_text(t: Trial) -> None:
    await _check_text(t, COMPLETIONS)


@case("completions_usage", asks="stream_options.include_usage", holds="a last event with no choices and the usage")
async def _completions_usage(t: Trial) -> None:
    await _check_usage(t, COMPLETIONS)


async def _streamed(t: Trial, api: Api) -> ParsedAnswer:
    await t.known.offers(api)
    return await t.stream(api, **api.prompt_fields(PROMPT))


def _choices(answer: ParsedAnswer) -> list[dict[str, Any]]:
    return [choice for chunk in answer.chunks for choice in take(chunk, "choices", list)]


def _check_finish(answer: ParsedAnswer, api: Api) -> None:
    choices = _choices(answer)
    ended = [i for i, choice in enumerate(choices) if choice.get("finish_reason") is not None]
    ensure(len(ended) == 1, f"there are {len(ended)} finish reasons, not 1")
    ensure(not any(pieces(api, answer)[ended[0] + 1 :]), "text came after the finish_reason")


def _check_done(exchange: RecordedExchange) -> None:
    events = read_events(exchange)
    ensure(events[-1] == DONE, f"the stream ends with {brief(events[-1])}, not with data: [DONE]")
    ensure(events.count(DONE) == 1, "[DONE] came more than once")


async def _check_text(t: Trial, api: Api) -> None:
    await t.known.offers(api)
    fields = (await t.known.sample(api)).fields
    whole = await t.generate(api, **fields)
    streamed = await t.stream(api, **fields)
    ensure(streamed.text == whole.text, f"streamed {brief(streamed.text, 160)}, whole {brief(whole.text, 160)}")
    one, two = streamed.first.reason, whole.first.reason
    ensure(one == two, f"the stream's finish_reason is {one!r}, the whole answer's {two!r}")


async def _check_usage(t: Trial, api: Api) -> None:
    await t.known.offers(api)
    answer = await t.stream(api, stream_options={"include_usage": True})
    last = answer.chunks[-1]
    ensure(last.get("usage") is not None, "usage was asked for, but the last event has none")
    ensure(last["choices"] == [], f"the event with the usage has choices: {brief(last['choices'])}")
    early = [chunk for chunk in answer.chunks[:-1] if chunk.get("usage") is not None]
    ensure(not early, "a usage came before the last event")

"""Logprobs of both text endpoints, whole and streamed."""

from __future__ import annotations

import math
from typing import Any

from drivetrain.tools.conform.answers import CHAT, COMPLETIONS, ParsedAnswer, ParsedChoice
from drivetrain.tools.conform.case import ALWAYS, BY_FIELD, Area, Cases
from drivetrain.tools.conform.cases.shapes import one_length
from drivetrain.tools.conform.reading import brief, refused, take
from drivetrain.tools.conform.requester import PROMPT
from drivetrain.tools.conform.trial import Trial
from drivetrain.tools.conform.verdict import Failed, NotRun, ensure

CASES = Cases(Area.LOGPROBS, BY_FIELD)
case = CASES.case

TOKENS = 6
IGNORED = "logprobs were accepted, but none came: they are ignored"
TOLERANCE = 0.06
"""Kernels whose rounding depends on the batch move a logprob by about this much."""


# Chat


async def _chat(t: Trial, **fields: Any) -> ParsedAnswer:
    await t.known.offers(CHAT)
    return await one_length(t, CHAT, TOKENS, **{"logprobs": True, "top_logprobs": 5, **fields})


def _entries(choice: ParsedChoice) -> list[dict[str, Any]]:
    if choice.logprobs is None:
        raise NotRun("logprobs are ignored; see logprobs.shape")
    count = len(take(choice.logprobs, "content", list))
    ensure(count, "logprobs.content is empty")
    return [take(choice.logprobs, f"content.{i}", dict) for i in range(count)]


def _alternatives(entry: dict[str, Any]) -> list[tuple[str, float]]:
    """Never empty. Raises `NotRun` if there are none, because that is one failure, not one per case."""
    top = take(entry, "top_logprobs", list)
    if not top:
        raise NotRun("a token has no alternatives; see logprobs.shape")
    return [(take(one, "token", str), take(one, "logprob", float)) for one in top]


@case(
    "shape",
    asks="logprobs with top_logprobs = 5",
    holds="each token has logprob, bytes and five alternatives, all <= 0",
)
async def _shape(t: Trial) -> None:
    answer = await _chat(t)
    ensure(answer.first.logprobs is not None, IGNORED)
    for entry in _entries(answer.first):
        top = take(entry, "top_logprobs", list)
        ensure(len(top) == 5, f"a token has {len(top)} alternatives, not 5")
        for one in (entry, *top):
            take(one, "token", str)
            logprob = take(one, "logprob", float)
            ensure(logprob <= 0, f"a logprob is {brief(logprob)}, above 0")
            ensure("bytes" in one, "an entry has no bytes")


@case("count", asks="logprobs of an answer of known length", holds="one entry for each completion token")
async def _count(t: Trial) -> None:
    answer = await _chat(t)
    got, want = len(_entries(answer.first)), answer.counted.completion
    ensure(got == want, f"{got} entries for {want} completion tokens")


@case("bytes", asks="the bytes of all tokens", holds="joined they are the text")
async def _bytes(t: Trial) -> None:
    answer = await _chat(t)
    parts = [take(entry, "bytes", list) for entry in _entries(answer.first)]
    try:
        joined = b"".join(map(bytes, parts))
    except (TypeError, ValueError):
        raise Failed(f"bytes holds something that is not a byte: {brief(parts)}") from None
    ensure(_whole(joined.decode("utf-8", "replace")) == _whole(answer.text),
           f"the bytes spell {brief(joined)}; the text is {brief(answer.text)}")  # fmt: skip


def _whole(text: str) -> str:
    """Without half a character at the end of the answer, which no text can show."""
    return text.replace("\ufffd", "")


@case("likeliest", asks="a greedy answer", holds="the chosen token is the likeliest, with the same logprob")
async def _likeliest(t: Trial) -> None:
    for entry in _entries((await _chat(t)).first):
        best = max(logprob for _, logprob in _alternatives(entry))
        token, chosen = take(entry, "token", str), take(entry, "logprob", float)
        ensure(abs(best - chosen) <= TOLERANCE, f"{brief(token)} was chosen with {chosen}; the best had {best}")


@case("probabilities", asks="five alternatives", holds="their probabilities add up to at most 1")
async def _probabilities(t: Trial) -> None:
    for entry in _entries((await _chat(t)).first):
        total = sum(math.exp(min(logprob, 1.0)) for _, logprob in _alternatives(entry))  # 1 is far too much already
        ensure(total <= 1 + TOLERANCE, f"the probabilities of five alternatives add up to {total:.3f}")


@case(
    "raw", asks="the first token's alternatives at temperature 0 and 2", holds="the same: they come from the raw logits"
)
async def _raw(t: Trial) -> None:
    cold = dict(_alternatives(_entries((await _chat(t)).first)[0]))
    hot = dict(_alternatives(_entries((await _chat(t, temperature=2)).first)[0]))
    both = cold.keys() & hot.keys()
    ensure(both, f"no alternative is the same: {brief(cold)} and {brief(hot)}")
    for token in both:
        ensure(abs(cold[token] - hot[token]) <= TOLERANCE,
               f"{token!r} has {cold[token]} at temperature 0 and {hot[token]} at 2")  # fmt: skip


@case("streamed", asks="logprobs streamed and whole", holds="the same tokens with the same logprobs")
async def _streamed(t: Trial) -> None:
    answer = await _chat(t)
    await t.known.sample()
    fields = {"logprobs": True, "top_logprobs": 5, "max_tokens": TOKENS, **await t.known.steady(CHAT)}
    streamed = await t.stream(CHAT, **fields)
    one, two = _entries(streamed.first), _entries(answer.first)
    same = [a.get("token") for a in one] == [b.get("token") for b in two] and all(
        abs(take(a, "logprob", float) - take(b, "logprob", float)) <= TOLERANCE for a, b in zip(one, two, strict=True)
    )
    ensure(same, f"streamed {brief(one, 160)}, whole {brief(two, 160)}")


@case("off", asks="no logprobs", holds="they are null, whole and streamed", offered=ALWAYS)
async def _off(t: Trial) -> None:
    api = await t.known.text_api()
    for answer in (await t.generate(api), await t.stream(api)):
        ensure(answer.first.logprobs is None, f"logprobs came without being asked for: {brief(answer.first.logprobs)}")


@case("too_many", asks="top_logprobs = 21", holds="4xx that names top_logprobs, or logprobs")
async def _too_many(t: Trial) -> None:
    await t.known.offers(CHAT)
    exchange = await t.post(CHAT.path, t.body(CHAT, logprobs=True, top_logprobs=21))
    refused(exchange, "top_logprobs = 21", "top_logprobs", "logprobs")


# Completions


async def _completion(t: Trial, logprobs: int, **fields: Any) -> ParsedAnswer:
    await t.known.offers(COMPLETIONS)
    return await one_length(t, COMPLETIONS, TOKENS, logprobs=logprobs, **fields)


def _lists(choice: ParsedChoice) -> dict[str, list[Any]]:
    ensure(choice.logprobs is not None, IGNORED)
    return {
        name: take(choice.logprobs, name, list) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    }


@case("completions_shape", asks="logprobs = 3 in a completion", holds="four lists of one length, as many as tokens")
async def _completions_shape(t: Trial) -> None:
    answer = await _completion(t, 3)
    lists = _lists(answer.first)
    counts = {name: len(found) for name, found in lists.items()}
    want = answer.counted.completion
    ensure(set(counts.values()) == {want}, f"{want} completion tokens, and lists of {counts}")
    for value in lists["token_logprobs"]:
        ensure(isinstance(value, (int, float)) and value <= 0, f"a logprob is {brief(value)}")
    for top in lists["top_logprobs"]:
        ensure(isinstance(top, dict) and 1 <= len(top) <= 4, f"the alternatives are {brief(top)}; 3 were asked for")


@case("completions_zero", asks="logprobs = 0", holds="the chosen token only")
async def _completions_zero(t: Trial) -> None:
    answer = await _completion(t, 0)
    found = _lists_but_top(answer.first)
    want = answer.counted.completion
    ensure(len(found) == want, f"{len(found)} logprobs for {want} completion tokens")
    assert answer.first.logprobs is not None
    for top in answer.first.logprobs.get("top_logprobs") or []:
        one = not top or (isinstance(top, dict) and len(top) == 1)
        ensure(one, f"with logprobs = 0 a token has the alternatives {brief(top)}")


def _lists_but_top(choice: ParsedChoice) -> list[Any]:
    ensure(choice.logprobs is not None, IGNORED)
    return list(take(choice.logprobs, "token_logprobs", list))


@case(
    "completions_offsets", asks="text_offset", holds="each token is at its offset in the text; the same when streamed"
)
async def _completions_offsets(t: Trial) -> None:
    answer = await _completion(t, 1)
    lists = _lists(answer.first)
    ensure(all(isinstance(i, int) for i in lists["text_offset"]), f"text_offset is {brief(lists['text_offset'])}")
    _check_offsets(answer.text, lists["tokens"], lists["text_offset"])
    await t.known.sample()
    fields = {"logprobs": 1, "max_tokens": TOKENS, **await t.known.steady(COMPLETIONS)}
    streamed = _lists((await t.stream(COMPLETIONS, **fields)).first)
    ensure(streamed["text_offset"] == lists["text_offset"],
           f"streamed {brief(streamed['text_offset'])}, whole {brief(lists['text_offset'])}")  # fmt: skip


def _check_offsets(text: str, tokens: list[Any], offsets: list[int]) -> None:
    """Offsets may include the prompt. A special token has no text and stands where the next token begins."""
    base = len(PROMPT) if offsets[:1] == [len(PROMPT)] else 0
    for token, offset, end in zip(tokens, offsets, [*offsets[1:], base + len(text)], strict=False):
        if not isinstance(token, str) or not token.isascii() or token.startswith("bytes:"):
            continue
        there = text[offset - base : end - base]
        silent = offset == end and not text.startswith(token, offset - base)
        ensure(
            silent or there == token, f"the token {token!r} has the offset {offset}, but the text there is {there!r}"
        )


@case("completions_echo", asks="echo with logprobs", holds="logprobs of the prompt too, the first one null")
async def _completions_echo(t: Trial) -> None:
    await t.known.offers(COMPLETIONS)
    await t.known.echoes()
    answer = await _completion(t, 1, echo=True)
    found = _lists_but_top(answer.first)
    usage = answer.counted
    ensure(found[:1] == [None], f"the first logprob is {brief(found[:1])}, not null: nothing comes before it")
    want = usage.prompt + usage.completion
    ensure(len(found) == want, f"{len(found)} logprobs for {want} tokens of prompt and answer")


@case("completions_too_many", asks="logprobs = 21 in a completion", holds="4xx that names logprobs")
async def _completions_too_many(t: Trial) -> None:
    await t.known.offers(COMPLETIONS)
    await t.refuse(COMPLETIONS, "logprobs", 21)

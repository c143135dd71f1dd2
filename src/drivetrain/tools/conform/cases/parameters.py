"""Parameters that are accepted must show their effect, on any model."""

from __future__ import annotations

from typing import Any

from drivetrain.tools.conform.answers import read_whole
from drivetrain.tools.conform.case import BY_EFFECT, BY_FIELD, Area, Cases
from drivetrain.tools.conform.cases.shapes import one_length
from drivetrain.tools.conform.client import Broken, Unreachable
from drivetrain.tools.conform.reading import brief, honoured
from drivetrain.tools.conform.survey import UNKNOWN_FIELD, Sample
from drivetrain.tools.conform.trial import Trial
from drivetrain.tools.conform.verdict import Failed, NotOffered, NotRun, ensure

CASES = Cases(Area.PARAMETERS, BY_FIELD)
case = CASES.case

LONG = 32
STORIES = ("Write a long story about the sea.", "na na na na na na na na", "Describe a house in great detail.")
FORCED = (1000, 600, 300, 200, 100, 65, 40)
"""Ids to force. In any vocabulary at least one of them is a token with text."""


@case("greedy_repeats", asks="temperature = 0, twice", holds="the same text")
async def _greedy(t: Trial) -> None:
    api = await t.known.text_api()
    texts = [(await t.generate(api, max_tokens=LONG)).text for _ in range(2)]
    ensure(len(set(texts)) == 1, f"temperature 0 gave different texts: {brief(texts, 300)}")


@case("temperature", asks="temperature = 2, four times", holds="not always the greedy text")
async def _temperature(t: Trial) -> None:
    api = await t.known.text_api()
    sample = await t.generate(api, max_tokens=LONG)
    hot = [(await t.generate(api, max_tokens=LONG, temperature=2)).text for _ in range(4)]
    ensure(any(text != sample.text for text in hot), "temperature 2 gave the greedy text four times: it is ignored")


@case("seed_repeats", asks="temperature = 1 with the same seed, twice", holds="the same text")
async def _seed(t: Trial) -> None:
    texts = [await _seeded(t, 7) for _ in range(2)]
    ensure(texts[0] == texts[1], f"the same seed gave {brief(texts[0])} and {brief(texts[1])}")


@case("seeds_differ", asks="temperature = 1 with four seeds", holds="not always the same text")
async def _seeds(t: Trial) -> None:
    texts = {await _seeded(t, seed) for seed in (1, 2, 3, 4)}
    ensure(len(texts) > 1, "four seeds gave the same text")


async def _seeded(t: Trial, seed: int) -> str:
    api = await t.known.text_api()
    return (await t.generate(api, max_tokens=LONG, temperature=1, seed=seed)).text


# Biases


@case("logit_bias_forces", asks="logit_bias = +100 for one token", holds="the answer is that token, repeated")
async def _forces(t: Trial) -> None:
    api = await t.known.text_api()
    plain = await t.generate(api, max_tokens=4)
    texts: list[str] = []
    for token_id in FORCED:
        try:
            answer = await t.generate(api, max_tokens=4, logit_bias={str(token_id): 100})
        except NotOffered:
            if token_id == FORCED[-1] and not texts:
                raise
            continue  # beyond this vocabulary
        texts.append(answer.text)
        if _is_repeated(answer.text, 4):
            return
    if all(text == plain.text for text in texts):
        raise Failed("logit_bias is ignored: the answers are the same without it")
    raise Failed(f"logit_bias = 100 did not force one token: {brief(texts, 200)}")


def _is_repeated(text: str, times: int) -> bool:
    """Ignoring spaces, since some tokenizers drop the first one."""
    bare = text.replace(" ", "").replace("\u2581", "")
    return bool(bare) and len(bare) % times == 0 and bare == bare[: len(bare) // times] * times


@case("logit_bias_bans", asks="logit_bias = -100 for the first token of a known answer", holds="another first token")
async def _bans(t: Trial) -> None:
    sample = await t.known.sample()
    await t.generate(sample.api, logit_bias={"5": 0.5})
    first = (await t.known.sample_ids())[0]
    banned = await t.generate(sample.api, **sample.fields, logit_bias={str(first): -100}, return_token_ids=True)
    ids = banned.first.extra.get("token_ids") or []
    ensure(first not in ids, f"the banned token {first} is in the answer: {brief(ids)}")


@case("logit_bias_beyond", asks="logit_bias for an id beyond the vocabulary", holds="400 that names logit_bias")
async def _beyond(t: Trial) -> None:
    api = await t.known.text_api()
    await t.refuse(api, "logit_bias", {"99999999": 1})


# A distribution cut down to one token is greedy at any temperature


def _cutting(name: str, value: float, offered: str) -> None:
    holds = "the greedy text: only the likeliest token is left"

    @case(name, asks=f"{name} = {value} at temperature 2", holds=holds, offered=offered)
    async def _check(t: Trial) -> None:
        api = await t.known.text_api()
        await t.known.sample()
        cut = [(await t.generate(api, max_tokens=16, temperature=2, **{name: value})).text for _ in range(2)]
        greedy = (await t.generate(api, max_tokens=16)).text
        same = all(text == greedy for text in cut)
        ensure(same, f"{name} = {value} at temperature 2 gave {brief(cut)}; greedy is {brief(greedy)}")


_cutting("top_k", 1, BY_EFFECT)
_cutting("top_p", 1e-6, BY_FIELD)
_cutting("min_p", 1.0, BY_EFFECT)


# Penalties


def _penalty(name: str, values: tuple[float, ...], offered: str) -> None:
    shown = " and ".join(f"{value:g}" for value in values)
    holds = "it changes at least one of the texts"

    @case(name, asks=f"{name} = {shown} on several prompts", holds=holds, offered=offered)
    async def _check(t: Trial) -> None:
        api = await t.known.text_api()
        await t.known.sample()
        for prompt in STORIES:
            fields: dict[str, Any] = {**api.prompt_fields(prompt), "max_tokens": LONG, **await t.known.steady(api)}
            plain = (await t.generate(api, **fields)).text
            for value in values:
                if (await t.generate(api, **fields, **{name: value})).text != plain:
                    return
        raise Failed(f"{name} changed no answer to {len(STORIES)} prompts: it is ignored")


_penalty("presence_penalty", (2.0, -2.0), BY_FIELD)
_penalty("frequency_penalty", (2.0, -2.0), BY_FIELD)
_penalty("repetition_penalty", (1.9,), BY_EFFECT)


# Lengths


@case("n", asks="n = 2 at temperature 2", holds="two choices, with the indices 0 and 1")
async def _n(t: Trial) -> None:
    api = await t.known.text_api()
    answer = await t.generate(api, n=2, temperature=2)
    indices = [choice.index for choice in answer.choices]
    ensure(indices == [0, 1], f"n = 2 gave the indices {indices}")


@case("min_tokens", asks="min_tokens = 6 with a stop in the first token", holds="at least 6 tokens",
      offered=BY_EFFECT)  # fmt: skip
async def _min_tokens(t: Trial) -> None:
    sample = await t.known.sample()
    fields = {**sample.fields, "max_tokens": 12}
    stop = _stop_in_first(sample)
    answer = await t.generate(sample.api, **fields, stop=stop, min_tokens=6)
    got = answer.counted.completion
    ensure(got >= 6, f"with min_tokens = 6 the answer has {got} tokens")


def _stop_in_first(sample: Sample) -> str:
    if sample.text[0] == "\ufffd":
        raise NotRun("the answer begins with half a character")
    return sample.text[0]


@case("ignore_eos", asks="ignore_eos on an answer that ends by itself", holds="it goes on to max_tokens",
      offered=BY_EFFECT)  # fmt: skip
async def _ignore_eos(t: Trial) -> None:
    api = await t.known.text_api()
    fields: dict[str, Any] = {**api.prompt_fields("Say hello in one word."), "max_tokens": 120}
    exchange = await t.post(api.path, t.body(api, **fields, ignore_eos=True))
    honoured(exchange, {"ignore_eos": None})
    alone = await t.generate(api, **fields)
    if alone.first.reason == "length":
        raise NotRun("the model did not end its answer within 120 tokens")
    answer = await t.generate(api, **fields, ignore_eos=True)
    got, reason = answer.counted.completion, answer.first.reason
    ensure(got == 120 and reason == "length", f"with ignore_eos: {got} tokens and {reason!r}, not 120 and 'length'")


# Our own extensions


@case("overflow", asks="overflow = truncate_left for a prompt that is too long", holds="an answer within the context",
      offered=BY_EFFECT)  # fmt: skip
async def _overflow(t: Trial) -> None:
    api = await t.known.text_api()
    await t.generate(api, overflow="truncate_left")
    limit = await t.known.context_length()
    body = t.body(api, **api.prompt_fields("word " * 2 * limit), max_tokens=4, overflow="truncate_left")
    try:
        exchange = await t.post(api.path, body)
    except Unreachable:
        raise
    except Broken as exc:
        raise NotRun(f"a context of {limit} tokens is not read in time: {exc}") from None
    if exchange.status != 200 and await t.known.takes(api, UNKNOWN_FIELD, 1):
        raise NotOffered("the server accepts every unknown field (parameters.unknown), yet refuses a long prompt")
    honoured(exchange, {"overflow": None})
    total = read_whole(api, exchange).counted.total
    ensure(total <= limit, f"usage counts {total} tokens; the context has {limit}")


@case("return_token_ids", asks="return_token_ids", holds="the ids of prompt and answer, as many as usage counts",
      offered=BY_EFFECT)  # fmt: skip
async def _token_ids(t: Trial) -> None:
    api = await t.known.text_api()
    answer = await one_length(t, api, 5, return_token_ids=True)
    ids = answer.first.extra.get("token_ids")
    ensure(ids is not None, "return_token_ids is accepted, but no ids came: it is ignored")
    ensure(len(ids or []) == answer.counted.completion, f"{len(ids or [])} ids for {answer.counted.completion} tokens")
    prompt = answer.first.extra.get("prompt_token_ids") or answer.document.get("prompt_token_ids")
    ensure(isinstance(prompt, list), "the ids of the prompt are missing")
    ensure(len(prompt or []) == answer.counted.prompt, f"{len(prompt or [])} ids for {answer.counted.prompt} tokens")


@case("unknown", asks="a field that no API has", holds="400 that names it", offered="every server knows its own fields")
async def _unknown(t: Trial) -> None:
    api = await t.known.text_api()
    await t.refuse(api, UNKNOWN_FIELD, 1)


@case("unused", asks="suffix and echo in a chat, messages in a completion", holds="400 that names the field",
      offered=BY_EFFECT)  # fmt: skip
async def _unused(t: Trial) -> None:
    api = await t.known.text_api()
    name, value = ("echo", True) if api.name == "chat" else ("messages", [{"role": "user", "content": "x"}])
    await t.refuse(api, name, value)

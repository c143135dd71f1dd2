"""Receipts: what made an answer. Their form and their digest are those of `docs/guides/receipts.md`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from drivetrain.core.errors import InvalidSetting
from drivetrain.core.receipt import Receipt
from drivetrain.core.sealing import opened
from drivetrain.tools.conform.answers import COMPLETIONS, ParsedAnswer, read_whole
from drivetrain.tools.conform.case import BY_EFFECT, Area, Cases
from drivetrain.tools.conform.cases.shapes import one_length
from drivetrain.tools.conform.reading import brief, honoured, refused, take
from drivetrain.tools.conform.requester import PROMPT
from drivetrain.tools.conform.trial import Trial
from drivetrain.tools.conform.verdict import Failed, NotRun, ensure

CASES = Cases(Area.RECEIPTS, BY_EFFECT)
case = CASES.case

HEADER = "x-drivetrain-receipt"
TOKENS = 5
SEED = 11


def _opened(found: Any) -> Receipt:
    try:
        return opened(found)[0]
    except InvalidSetting as exc:
        raise Failed(exc.message) from None


def _of(document: Mapping[str, Any]) -> Receipt:
    return _opened(take(document, "receipt", dict))


async def _answer(t: Trial, **fields: Any) -> tuple[ParsedAnswer, Receipt]:
    answer = await t.generate(await t.known.text_api(), **{"receipt": True, **fields})
    return answer, _of(answer.document)


def _names(receipt: Receipt, document: Mapping[str, Any], which: str) -> None:
    told, found = receipt.request_id, document.get("id")
    ensure(told == found, f"request_id is {brief(told)}, and the {which}'s id {brief(found)}")


def _same(first: Receipt, second: Receipt, which: str) -> None:
    """Apart from what tells two answers apart."""
    one, other = (replace(each, request_id="", created=0, digest="", signature=None) for each in (first, second))
    unlike = [field.name for field in fields(Receipt) if getattr(one, field.name) != getattr(other, field.name)]
    ensure(not unlike, f"the receipts of {which} differ in {', '.join(unlike)}")


@case("offered", asks="receipt = true", holds="a receipt, or 4xx that names receipt")
async def _offered(t: Trial) -> None:
    api = await t.known.text_api()
    exchange = await t.post(api.path, t.body(api, receipt=True))
    if exchange.status == 200:
        _of(exchange.document)
    else:
        refused(exchange, "receipt = true", "receipt")


@case("shape", asks="receipt = true", holds="the documented form, a digest of its contents, the answer's id and reason")
async def _shape(t: Trial) -> None:
    answer, receipt = await _answer(t)
    _names(receipt, answer.document, "answer")
    told, reason = receipt.choices[0].finish_reason, answer.first.reason
    ensure(told == reason, f"finish_reason is {told!r} in the receipt, and {reason!r} in the answer")


@case("unasked", asks="an answer without receipt, and with receipt = false", holds="no receipt")
async def _unasked(t: Trial) -> None:
    api = await t.known.text_api()
    await _answer(t)
    for wish in ({}, {"receipt": False}):
        answer = await t.generate(api, **wish)
        ensure("receipt" not in answer.document, "an answer has a receipt that was not asked for")


@case("counts", asks=f"max_tokens = {TOKENS}", holds="as many ids as usage counts, in the prompt and in the answer")
async def _counts(t: Trial) -> None:
    answer = await one_length(t, await t.known.text_api(), TOKENS, receipt=True)
    receipt, usage = _of(answer.document), answer.counted
    told = len(receipt.choices[0].token_ids)
    ensure(told == usage.completion, f"the receipt has {told} ids, and usage counts {usage.completion} tokens")
    read = receipt.prompt.tokens
    ensure(read == usage.prompt, f"the receipt's prompt has {read} tokens, and usage counts {usage.prompt}")


@case("full", asks="receipt = full, and true", holds="the ids of the prompt, and only their hash")
async def _full(t: Trial) -> None:
    full, plain = (await _answer(t, receipt="full"))[1].prompt, (await _answer(t))[1].prompt
    ensure(full.ids is not None, "a full receipt has no ids of the prompt")
    told = len(full.ids or ())
    ensure(told == full.tokens, f"a full receipt has {told} ids of a prompt of {full.tokens} tokens")
    ensure(plain.ids is None, "a receipt that is not full has the ids of the prompt")
    ensure(plain.sha256 == full.sha256, "the same prompt has two hashes")


@case("streamed", asks="a greedy answer with a receipt, streamed and whole",
      holds="the same receipt, in one event of its own behind all choices")  # fmt: skip
async def _streamed(t: Trial) -> None:
    api = await t.known.text_api()
    seeded = {"seed": SEED} if await t.known.takes(api, "seed", SEED) else {}
    _, whole = await _answer(t, **seeded)
    stream = await t.stream(api, receipt=True, **seeded)
    places = [at for at, chunk in enumerate(stream.chunks) if "receipt" in chunk]
    ensure(len(places) == 1, f"{len(places)} events of the stream have a receipt; it must be one")
    last = max(at for at, chunk in enumerate(stream.chunks) if chunk.get("choices"))
    ensure(places[0] > last, "the receipt does not come in an event of its own behind all choices")
    receipt = _of(stream.chunks[places[0]])
    _names(receipt, stream.document, "stream")
    if not seeded:
        whole, receipt = (_without_seed(each) for each in (whole, receipt))
    _same(whole, receipt, "the stream and the whole answer")


def _without_seed(receipt: Receipt) -> Receipt:
    return replace(receipt, parameters={name: one for name, one in receipt.parameters.items() if name != "seed"})


@case("repeats", asks="a seeded request twice, at temperature 1", holds="the same receipt")
async def _repeats(t: Trial) -> None:
    first, second = [(await _answer(t, temperature=1, seed=SEED))[1] for _ in range(2)]
    _same(first, second, "the same request")


@case("chosen", asks="a sampled answer without a seed, and again with the seed of its receipt", holds="the same ids")
async def _chosen(t: Trial) -> None:
    _, receipt = await _answer(t, temperature=1)
    settled = receipt.parameters.get("seed")
    if settled is None:
        raise NotRun("the receipt has no seed")
    ensure(settled.origin == "chosen", f"the seed's origin is {brief(settled.origin)}, not 'chosen'")
    _, again = await _answer(t, temperature=1, seed=settled.value)
    ensure(again.choices == receipt.choices, "the seed of a receipt gives another answer")


@case("several", asks="n = 2", holds="one receipt with both choices, whose ids add up to the usage")
async def _several(t: Trial) -> None:
    answer, receipt = await _answer(t, n=2, temperature=1)
    indices = [choice.index for choice in receipt.choices]
    ensure(indices == [0, 1], f"with n = 2 the receipt has the choices {indices}")
    total, counted = sum(len(choice.token_ids) for choice in receipt.choices), answer.counted.completion
    ensure(total == counted, f"the choices have {total} ids, and usage counts {counted} tokens")


@case("prompts", asks="a completion of two prompts", holds="receipts: one each, in their order")
async def _prompts(t: Trial) -> None:
    await t.known.offers(COMPLETIONS)
    texts = [PROMPT, "Once upon a time"]
    alone = [_of((await t.generate(COMPLETIONS, prompt=text, receipt=True)).document) for text in texts]
    document = (await t.generate(COMPLETIONS, prompt=texts, receipt=True)).document
    hashes = [_opened(found).prompt.sha256 for found in take(document, "receipts", list)]
    ensure(len(hashes) == 2, f"a completion of two prompts has {len(hashes)} receipts")
    ensure(hashes == [one.prompt.sha256 for one in alone], "the receipts are not in the order of the prompts")


@case("header", asks=f"{HEADER}: 1 instead of the field", holds="a receipt")
async def _header(t: Trial) -> None:
    await _answer(t)
    api = await t.known.text_api()
    exchange = await t.ask("POST", t.base + api.path, t.body(api), headers={HEADER: "1"})
    honoured(exchange, {})
    _of(read_whole(api, exchange).document)


@case("refuse_value", asks="receipt = half", holds="4xx that names receipt")
async def _refuse_value(t: Trial) -> None:
    await t.refuse(await t.known.text_api(), "receipt", "half")

"""`/tokenize`, `/detokenize` and `/tokenizer_info`."""

from __future__ import annotations

from typing import Any

from drivetrain.tools.conform.answers import CHAT
from drivetrain.tools.conform.case import BY_ENDPOINT, Area, Cases
from drivetrain.tools.conform.exchange import RecordedExchange
from drivetrain.tools.conform.reading import brief, refused, take
from drivetrain.tools.conform.requester import PROMPT
from drivetrain.tools.conform.survey import answered
from drivetrain.tools.conform.trial import Trial
from drivetrain.tools.conform.verdict import NotOffered, ensure

CASES = Cases(Area.TOKENS, BY_ENDPOINT)
case = CASES.case

TEXT = "Hello wörld, 你好"


async def _tokenize(t: Trial, **fields: Any) -> list[int]:
    exchange = await t.ask("POST", f"{t.root}/tokenize", {"model": t.model, **fields})
    _offered(exchange)
    tokens = take(exchange.json(), "tokens", list)
    ensure(tokens, "tokens is empty")
    ensure(
        all(isinstance(i, int) and not isinstance(i, bool) for i in tokens),
        f"tokens holds something that is not an id: {brief(tokens)}",
    )
    if "count" in exchange.json():
        count = take(exchange.json(), "count", int)
        ensure(count == len(tokens), f"count is {count}, but there are {len(tokens)} tokens")
    return list(tokens)


def _offered(exchange: RecordedExchange) -> None:
    answered(exchange)
    if exchange.document.get("tokens") == []:
        raise NotOffered("/tokenize exists but takes no prompt: it is a different endpoint")


@case("ids", asks="/tokenize of a prompt", holds="ids, as many as count says")
async def _ids(t: Trial) -> None:
    await _tokenize(t, prompt=TEXT)


@case("back", asks="/detokenize of these ids", holds="the text")
async def _back(t: Trial) -> None:
    tokens = await _tokenize(t, prompt=TEXT)
    exchange = await t.ask("POST", f"{t.root}/detokenize", {"model": t.model, "tokens": tokens})
    answered(exchange)
    text = take(exchange.json(), "prompt", str)
    ensure(text.endswith(TEXT), f"the ids of {TEXT!r} decode to {text!r}")


@case("chat", asks="/tokenize of messages", holds="as many ids as the chat's usage counts")
async def _chat(t: Trial) -> None:
    await t.known.offers(CHAT)
    await _tokenize(t, prompt=TEXT)
    tokens = await _tokenize(t, **CHAT.prompt_fields(PROMPT))
    counted = (await t.generate(CHAT, **CHAT.prompt_fields(PROMPT))).counted.prompt
    ensure(len(tokens) == counted, f"{len(tokens)} ids; usage counts {counted} prompt tokens")


@case(
    "info", asks="/tokenizer_info", holds="the special tokens, each a text or null, and the chat template if it has one"
)
async def _info(t: Trial) -> None:
    exchange = await t.ask("GET", f"{t.root}/tokenizer_info")
    answered(exchange)
    told = exchange.json()
    for name in ("eos_token", "bos_token", "pad_token"):
        ensure(name in told, f"the answer has no {name}")
    for name in ("eos_token", "bos_token", "pad_token", "chat_template"):
        found = told.get(name)
        ensure(found is None or isinstance(found, str), f"{name} is {brief(found)}, neither a text nor null")


_BAD: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("nothing", "/tokenize", {}),
    ("number", "/tokenize", {"prompt": 5}),
    ("no_tokens", "/detokenize", {}),
    ("negative", "/detokenize", {"tokens": [-1]}),
    ("huge", "/detokenize", {"tokens": [10**12]}),
    ("string", "/detokenize", {"tokens": "a"}),
)


def _bad(name: str, path: str, body: dict[str, Any]) -> None:
    @case(f"refuse_{name}", asks=f"{path} with {brief(body)}", holds="4xx")
    async def _check(t: Trial) -> None:
        await _tokenize(t, prompt=TEXT)
        refused(await t.ask("POST", t.root + path, body), f"{path} with {brief(body)}")


for _row in _BAD:
    _bad(*_row)

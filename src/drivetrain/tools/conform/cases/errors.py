"""Errors: their status, their form, and that they reveal no more than they should."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

from drivetrain.tools.conform.case import ALWAYS, BY_ENDPOINT, Area, Cases
from drivetrain.tools.conform.client import Broken
from drivetrain.tools.conform.exchange import RecordedExchange
from drivetrain.tools.conform.reading import MAX_ERROR_BYTES, brief, error_of, message_of, param_names, refused, take
from drivetrain.tools.conform.requester import PROMPT
from drivetrain.tools.conform.survey import UNKNOWN_MODEL
from drivetrain.tools.conform.trial import Trial
from drivetrain.tools.conform.verdict import Failed, NotRun, ensure

CASES = Cases(Area.ERRORS, ALWAYS)
case = CASES.case

QUICK_S = 10.0
_LEAKS = re.compile(r"Traceback|site-packages|File \\?\"|/home/|/usr/|/opt/|\.py\b|0x[0-9a-f]{8}")

_FAULTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("temperature", {"temperature": 9}),
    ("max_tokens", {"max_tokens": "x"}),
    ("n", {"n": 0}),
    ("top_p", {"top_p": 7}),
)


async def _faulty(t: Trial) -> AsyncIterator[tuple[str, RecordedExchange]]:
    """The replies to those that are refused. Whether all are is for the area `refusals` to check."""
    api = await t.known.text_api()
    some = False
    for name, fields in _FAULTS:
        exchange = await t.post(api.path, t.body(api, **fields))
        if exchange.status != 200:
            some = True
            yield name, exchange
    if not some:
        raise NotRun("none of four faulty requests is refused")


@case("shape", asks="four faulty requests", holds="{error: {message, type, param, code}} as JSON, under 4 kB")
async def _shape(t: Trial) -> None:
    async for _, exchange in _faulty(t):
        error = error_of(exchange)
        missing = sorted({"message", "type", "param", "code"} - error.keys())
        ensure(not missing, f"the error object has no {' and no '.join(missing)}: {brief(error, 200)}")
        take(error, "type", str)
        kind = exchange.reply_headers.get("content-type", "")
        ensure(kind.startswith("application/json"), f"an error has the content type {kind!r}")
        ensure(len(exchange.reply) < MAX_ERROR_BYTES, f"an error is {len(exchange.reply)} bytes long")


@case("status", asks="four faulty requests", holds="400 for each")
async def _status(t: Trial) -> None:
    async for name, exchange in _faulty(t):
        ensure(exchange.status == 400, f"a faulty {name} has status {exchange.status}, not 400")


@case("param", asks="four faulty requests", holds="error.param names the field")
async def _param(t: Trial) -> None:
    async for name, exchange in _faulty(t):
        ensure(param_names(exchange, name), f"error.param is {brief(error_of(exchange).get('param'))}, not {name!r}")


@case("no_leak", asks="faulty requests and paths", holds="no local path, no traceback, no source file")
async def _no_leak(t: Trial) -> None:
    async for _, exchange in _faulty(t):
        _check_leak(exchange)
    api = await t.known.text_api()
    _check_leak(await t.post(api.path, b"{"))
    _check_leak(await t.post("/drivetrain-conform-no-such-path", {}))


def _check_leak(exchange: RecordedExchange) -> None:
    found = _LEAKS.search(exchange.reply.decode("utf-8", "replace"))
    ensure(not found, f"an error says {found and found.group()!r}: {message_of(exchange)}")


_BODIES: tuple[tuple[str, bytes], ...] = (
    ("empty", b""),
    ("broken", b"{"),
    ("list", b"[]"),
    ("null", b"null"),
    ("no_utf8", b'{"model": "\xff"}'),
    ("deep", b"[" * 5000),
)


def _bad_body(name: str, body: bytes) -> None:
    @case(f"body_{name}", asks=f"the body {brief(body, 24)}", holds="4xx", offered=BY_ENDPOINT)
    async def _bad(t: Trial) -> None:
        api = await t.known.text_api()
        exchange = await t.post(api.path, body)
        refused(exchange, f"the body {brief(body, 24)}")


for _row in _BODIES:
    _bad_body(*_row)


@case("unknown_model_code", asks="an unknown model", holds="error.code model_not_found", offered=BY_ENDPOINT)
async def _unknown_model_code(t: Trial) -> None:
    api = await t.known.text_api()
    exchange = await t.post(api.path, t.body(api, model=UNKNOWN_MODEL))
    if exchange.status == 200:
        raise NotRun(f"an unknown model gets an answer; see {api.name}.unknown_model")
    code = error_of(exchange).get("code")
    ensure(code == "model_not_found", f"error.code is {brief(code)}, not 'model_not_found'")


async def _too_long(t: Trial, **fields: Any) -> tuple[int, RecordedExchange]:
    """The context length, and the reply to a prompt of about twice that."""
    api = await t.known.text_api()
    limit = await t.known.context_length()
    return limit, await t.post(api.path, t.body(api, **api.prompt_fields("word " * 2 * limit), **fields))


@case("over_context", asks="a prompt twice as long as the context", holds="4xx that states the limit",
      offered=BY_ENDPOINT)  # fmt: skip
async def _over_context(t: Trial) -> None:
    limit, exchange = await _too_long(t)
    refused(exchange, f"a prompt of about {2 * limit} tokens")
    ensure(
        str(limit) in message_of(exchange).replace(",", ""),
        f"it does not state the limit {limit}: {message_of(exchange)}",
    )


@case("over_context_code", asks="a prompt twice as long as the context", holds="error.code context_length_exceeded",
      offered=BY_ENDPOINT)  # fmt: skip
async def _over_context_code(t: Trial) -> None:
    _, exchange = await _too_long(t)
    code = error_of(exchange).get("code")
    ensure(code == "context_length_exceeded", f"error.code is {brief(code)}, not 'context_length_exceeded'")


@case("over_context_streamed", asks="the same, streamed", holds="4xx before any event, no empty stream",
      offered=BY_ENDPOINT)  # fmt: skip
async def _over_context_streamed(t: Trial) -> None:
    _, exchange = await _too_long(t, stream=True)
    ensure(exchange.status != 200, "a stream was started for a prompt that does not fit")
    refused(exchange, "a streamed prompt that does not fit")


@case(
    "over_with_answer", asks="max_tokens = 100,000,000", holds="4xx: prompt and answer do not fit", offered=BY_ENDPOINT
)
async def _over_with_answer(t: Trial) -> None:
    api = await t.known.text_api()
    exchange = await t.ask("POST", t.base + api.path, t.body(api, max_tokens=100_000_000), timeout_s=QUICK_S)
    refused(exchange, "max_tokens = 100,000,000")


@case("unknown_path", asks="an unknown path", holds="404 with an error object")
async def _unknown_path(t: Trial) -> None:
    exchange = await t.post("/drivetrain-conform-no-such-path", {"prompt": PROMPT})
    ensure(exchange.status == 404, f"status {exchange.status} for an unknown path")
    error_of(exchange)


@case(
    "wrong_method",
    asks="PUT on a path that takes POST, DELETE on one that takes GET",
    holds="405 or 404, with an error object",
)
async def _wrong_method(t: Trial) -> None:
    api = await t.known.text_api()
    for method, path in (("PUT", api.path), ("DELETE", "/models")):
        exchange = await t.ask(method, t.base + path)
        ensure(exchange.status in {404, 405}, f"{method} {path} has status {exchange.status}, not 405")
        error_of(exchange)


@case("large_body", asks="a Content-Length of 1 TiB", holds="4xx such as 413, without waiting for the body")
async def _large_body(t: Trial) -> None:
    api = await t.known.text_api()
    headers = {"content-length": str(2**40)}
    try:
        exchange = await t.ask("POST", t.base + api.path, b"{", headers=headers, timeout_s=QUICK_S)
    except Broken as exc:
        raise Failed(f"the server does not refuse a body announced as 1 TiB: {exc}") from None
    ensure(400 <= exchange.status < 500, f"status {exchange.status}, not 413")


@case("large_headers", asks="a header of 128 kB", holds="it is accepted, or refused with 4xx such as 431")
async def _large_headers(t: Trial) -> None:
    try:
        exchange = await t.ask("GET", f"{t.base}/models", headers={"x-padding": "x" * 2**17}, timeout_s=QUICK_S)
    except Broken as exc:
        raise Failed(f"the server does not answer a request with a header of 128 kB: {exc}") from None
    ensure(exchange.status < 500, f"status {exchange.status}, not 431")

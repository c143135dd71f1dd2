"""Keys, where one is given: nothing but `/health` is open without it."""

from __future__ import annotations

from drivetrain.conform.case import Area, Cases
from drivetrain.conform.exchange import Exchange
from drivetrain.conform.reading import error_of
from drivetrain.conform.trial import Trial
from drivetrain.conform.verdict import NotRun, ensure

CASES = Cases(Area.AUTH, "a key is given by the environment")
case = CASES.case

WRONG = "conform-wrong-key"
GET, POST = ("/models",), ("/chat/completions", "/completions", "/embeddings")
ROOTED = ("/tokenize", "/detokenize", "/metrics", "/status")


def _need_key(t: Trial) -> None:
    if not t.client.key:
        raise NotRun("no key was given; see DRIVETRAIN_API_KEY")


async def _knock(t: Trial, key: str) -> list[Exchange]:
    asked = [("GET", t.base + path) for path in GET] + [("POST", t.base + path) for path in POST]
    asked += [("POST" if "token" in path else "GET", t.root + path) for path in ROOTED]
    asked += [("GET", f"{t.base}/models/"), ("GET", f"{t.base}/models/{t.model}")]
    return [await t.ask(method, path, {} if method == "POST" else None, key=key) for method, path in asked]


def _closed(exchanges: list[Exchange], how: str) -> None:
    """A path that is not there may say so."""
    for exchange in exchanges:
        ensure(exchange.status in {401, 404, 405}, f"{exchange.said} {how} has status {exchange.status}, not 401")
    ensure(any(exchange.status == 401 for exchange in exchanges), f"no path asks for a key {how}")


@case("missing", asks="every path without a key", holds="401")
async def _missing(t: Trial) -> None:
    _need_key(t)
    _closed(await _knock(t, ""), "without a key")


@case("wrong", asks="every path with a wrong key", holds="401")
async def _wrong(t: Trial) -> None:
    _need_key(t)
    _closed(await _knock(t, WRONG), "with a wrong key")


@case("right", asks="the list of models with the key", holds="200")
async def _right(t: Trial) -> None:
    _need_key(t)
    exchange = await t.get("/models")
    ensure(exchange.status == 200, f"status {exchange.status} with the right key")


@case("error", asks="the list of models without a key", holds="an error object")
async def _error(t: Trial) -> None:
    _need_key(t)
    exchange = await t.ask("GET", f"{t.base}/models", key="")
    ensure(exchange.status == 401, f"status {exchange.status}, not 401")
    error_of(exchange)


@case("options", asks="OPTIONS without a key", holds="401")
async def _options(t: Trial) -> None:
    _need_key(t)
    exchange = await t.ask("OPTIONS", f"{t.base}/models", key="")
    ensure(exchange.status == 401, f"OPTIONS without a key has status {exchange.status}, not 401")


@case("health", asks="/health without a key", holds="200", offered="/health is there")
async def _health(t: Trial) -> None:
    _need_key(t)
    exchange = await t.ask("GET", f"{t.root}/health", key="")
    ensure(exchange.status == 200, f"/health without a key has status {exchange.status}: nobody can watch the process")
